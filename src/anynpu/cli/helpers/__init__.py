"""What the commands have in common: options, output, recognising files."""
