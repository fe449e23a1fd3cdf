"""What all commands share: flags, help, one-line errors and exit codes."""
