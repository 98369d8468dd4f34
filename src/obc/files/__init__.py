"""What is kept on disk: artifacts that are checked before they are believed, and exports."""
