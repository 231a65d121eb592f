"""The API through the clients that people use: what they send is understood, and they get what they take for granted."""
