"""Material for the demonstration and for tests: generated pages and lines of text, and text boxes from a detector's output."""
