"""Diagnosis of bottlenecks: one sample of some seconds, judged by rules, explanations first."""
