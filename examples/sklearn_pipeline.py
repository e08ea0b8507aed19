"""A scikit-learn pipeline around FairClassifier: scaling, cross-validation with groups, a verdict at the end.

Synthetic census of Virginia: is the income above 50,000 dollars a year? The mean losses by marital status may differ
by .05 from their mean.
"""

import warnings

import torch
from sklearn import set_config
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fairbound.data import load
from fairbound.integrations.sklearn import FairClassifier

torch.set_num_threads(1)
set_config(enable_metadata_routing=True)  # so that the pipeline passes the groups on

data = load("synthetic:VA").dataset("MAR")
X, y, status = data.X.numpy(), data.y.numpy().astype(int), data.groups["MAR"].numpy()


def pipeline(**settings):
    classifier = FairClassifier(constraint="loss_parity", bound=0.05, steps=800, random_state=0, **settings)
    return make_pipeline(StandardScaler(), classifier.set_fit_request(sensitive_features=True))


scores = cross_validate(pipeline(mode="train_duals", compile=False), X, y, cv=2, params={"sensitive_features": status})
print(f"accuracy in cross-validation: {scores['test_score'].round(3)}")

fitted = pipeline(compile=False).fit(X, y, sensitive_features=status)
fair = fitted[-1]
print(fair.decision_)
print(fair.verdict_)  # from examples used neither for training, nor for the multipliers, nor for model selection
print(f"verdict: {fair.verdict_.decision}; probabilities of the first example: {fitted.predict_proba(X[:1]).round(3)}")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that there are no groups
    plain = pipeline(compile=False).fit(X, y)
print(f"accuracy on all examples: fair {fitted.score(X, y):.3f}, unconstrained {plain.score(X, y):.3f}")
