"""What is behind ``fanin map``: templates, inputs, processes, outputs and the terminal."""
