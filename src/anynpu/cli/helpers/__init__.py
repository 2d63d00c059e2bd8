"""What the commands have in common: options, output, recognizing files."""
