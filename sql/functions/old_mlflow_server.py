"""A model behind MLflow's scoring server before 2.0, unmodified: old_mlflow_server.py FOLDER PORT"""

import sys

import mlflow.pyfunc
from mlflow.pyfunc import scoring_server


class Model(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input):
        return (model_input["a"] * 2 + model_input["b"]).tolist()


folder, port = sys.argv[1:]
mlflow.pyfunc.save_model(f"{folder}/old_model", python_model=Model())
scoring_server.init(mlflow.pyfunc.load_model(f"{folder}/old_model")).run("127.0.0.1", int(port))
