"""What Horovod's modules have in common; see ALIASES of the package."""
