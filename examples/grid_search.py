"""scikit-learn's grid search tries its candidates on the pool's ranks.

Run it: python examples/grid_search.py
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.svm import SVC

import sky_jupyter as sky

if __name__ == "__main__":
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(images / 16, labels, test_size=0.25, random_state=0)
    candidates = {"C": [0.01, 1, 10], "kernel": ["rbf", "linear"]}

    with sky.Compute(provider=sky.Local(), nodes=2, plugins=[sky.plugins.sklearn()]):
        search = GridSearchCV(SVC(), candidates, cv=3, n_jobs=-1)
        search.fit(x_train, y_train)

    print("best:", search.best_params_)
    print(f"accuracy: {search.score(x_test, y_test):.3f}")
