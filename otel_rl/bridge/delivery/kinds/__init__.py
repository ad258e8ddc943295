"""What kinds of trackers share: options, and kinds of other packages."""
