"""What all views need to know of the front end and of the person before it."""
