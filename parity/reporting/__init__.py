"""Results to formats: dataclasses first, then one small renderer per format."""
