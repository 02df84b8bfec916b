"""The live relay: phones post true places, recipients get what a policy allows, and nothing true is kept."""
