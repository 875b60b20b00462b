"""What each column is: its kind is inferred, and a codec turns its cells into encoded numbers and back."""
