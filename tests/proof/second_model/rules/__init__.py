"""The rules of the second model, one module for each chapter of the documentation: which answers it allows."""
