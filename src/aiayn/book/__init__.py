"""What the pages of the book use and readers never need to see explained."""
