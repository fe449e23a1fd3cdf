"""The one exception that means "the user can mend this".

Every package raises `UserError` for a bad flag, a missing file, data that do not fit
the configuration and the like; `launch/app.py` prints it as one line and exits with 2.
An exception of any other kind is a defect of ours and keeps its traceback.
"""


class UserError(Exception):
    """A mistake the user can mend: the message says what, where and how, in one line."""

    exit_code = 2
