"""Small networks written by hand, each built around one thing a tracer can get wrong."""
