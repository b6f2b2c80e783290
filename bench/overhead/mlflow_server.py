"""MLflow's scoring server as it is, with the small forest: mlflow_server.py MODEL FOLDER PORT"""

import pathlib
import pickle
import sys

import mlflow.pyfunc
import mlflow.sklearn
import uvicorn
from mlflow.pyfunc import scoring_server

path, folder, port = sys.argv[1:]
model = pickle.loads(pathlib.Path(path).read_bytes())
mlflow.sklearn.save_model(model, folder, serialization_format="cloudpickle")
uvicorn.run(scoring_server.init(mlflow.pyfunc.load_model(folder)), host="127.0.0.1", port=int(port), log_level="warning")
