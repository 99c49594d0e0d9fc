"""Other people's file formats: what they wrote opens here, and what we write opens there."""
