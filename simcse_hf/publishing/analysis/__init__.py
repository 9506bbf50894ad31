"""Pictures of models, runs and searches, the numbers behind them, and one report with all of them."""
