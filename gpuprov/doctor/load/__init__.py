"""Where the bottleneck is: one sample of some seconds, judged by rules, those first that explain others."""
