"""What makes an encoder fast: padding removal, attention of packed rows, products on a CPU, and memory."""
