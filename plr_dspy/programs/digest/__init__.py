"""What a program is, as text and digests that are the same in every process."""
