"""From a release to components, and their way back to the owners."""
