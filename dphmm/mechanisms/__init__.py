"""How noise is drawn."""
