"""robopo: reinforcement-learning fine-tuning of generative robot policies."""

__version__ = "0.1.0"
