"""A scikit-learn pipeline
==========================

`FairPostprocessor` around a model of your own, cross-validation with groups, a verdict, and an
audit of both models.

A synthetic census of Virginia: who earns more than 50,000 dollars a year? The rates of positive
predictions of people by marital status must differ by at most 0.2, and marital status is not used
to predict.
"""

import numpy as np
import torch
from matplotlib import pyplot as plt
from sklearn import set_config
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fairbound import audit
from fairbound.data import load
from fairbound.integrations.sklearn import FairPostprocessor

torch.set_num_threads(1)
set_config(enable_metadata_routing=True)  # so that the groups find their way through the pipeline

data = load("synthetic:VA").dataset("MAR")
X, y = data.X.numpy()[:12_000], data.y.numpy().astype(int)[:12_000]
married = np.where(data.groups["MAR"].numpy()[:12_000] == 0, "married", "not married")

classifier = FairPostprocessor(
    LogisticRegression(), constraint="demographic_parity", bound=0.2, random_state=0
)
pipeline = make_pipeline(StandardScaler(), classifier)
scores = cross_validate(pipeline, X, y, cv=2, params={"sensitive_features": married})
print(f"accuracy in cross-validation: {scores['test_score'].round(3)}")

pipeline.fit(X, y, sensitive_features=married)
fair = pipeline[-1]
print(fair.report())  # the verdict in it is from calibration data, which nothing else has used
print(
    f"verdict: {fair.verdict_.decision}; probabilities of the first:"
    f" {pipeline.predict_proba(X[:1]).round(3)}"
)

plain, scaled = fair.unconstrained_, pipeline[:-1].transform(X)
at = fair.calibration_
for color, (name, model) in zip("br", {"fair": fair, "plain": plain}.items(), strict=True):
    rates = [model.predict(scaled)[married == group].mean() for group in ("married", "not married")]
    print(f"{name}: accuracy {model.score(scaled, y):.3f}, rates {rates[0]:.3f} and {rates[1]:.3f}")
    audited = audit(y[at], married[at], predictions=model.predict(scaled[at]))
    for group in audited.groups:
        rate, low, high = group.rates["positive_rate"]
        plt.errorbar(
            f"{name}, {group.name}", rate, [[rate - low], [high - rate]], fmt=f"o{color}", capsize=4
        )

plt.title("Audit: rates of positive predictions, 95 % intervals")
plt.margins(x=0.2)
plt.show()
