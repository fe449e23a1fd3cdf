"""What the TPU compiler makes of the train step.

`bash launch/test.sh --plan` installs it and runs them.
"""
