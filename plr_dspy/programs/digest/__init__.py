"""Describes programs by texts and digests that are the same in every process."""
