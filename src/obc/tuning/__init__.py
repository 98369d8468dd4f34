"""Getting the accuracy back: recipes, fine-tuning, distillation, sparse learning."""
