# Each target is a script that one can read. RUNTIME=auto|docker|podman|process says what runs containers.
RUNTIME ?= auto
export RUNTIME
# Which PostgreSQL: Debian's 15 if left out.
export PG_CONFIG

help:            ## This list.
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 18

build:           ## Build the extension and the manager, and install the extension into PostgreSQL 15.
	@scripts/packages.sh postgresql-15 postgresql-server-dev-15 clang libclang-dev python3-venv binutils
	@scripts/install.sh

demo:            ## Run the main job: a scikit-learn model in a container, over 336,776 flights, with plain SQL.
	@scripts/demo.sh

test:            ## Install what is needed, Docker included, and run every test.
	@tests/all.sh

form:            ## Check the form of the code, its documentation, licences and versions: what needs no server.
	@tests/form.sh

installcheck:    ## Run the SQL tests alone: sql/ against expected/.
	@tests/installcheck.sh

mssql:           ## Package the SQL Server extension, and the manager for the same hosts: target/mssql.
	@scripts/mssql.sh
	@scripts/mssql.sh manager

mssqlcheck:      ## Run the tests of the SQL Server extension alone, in the test host beside PostgreSQL.
	@tests/mssqlcheck.sh

conformance:     ## Judge every template against docs/protocol.md, and print the matrix.
	@tests/conformance.sh

conformance-faults: ## Judge the judge: it must name each fault of a server that breaks one clause of docs/protocol.md.
	@tests/conformance_faults.sh

templates:       ## Start a project from every template, build it, and ask all of them the same in SQL.
	@tests/templates.sh

faults:          ## Break containers, manager, Docker, backends, network and satellite under running queries, with every long case.
	@tests/faults.sh

soak:            ## Put load on it: up to 256 sessions for 10 minutes each, and an hour in which memory must stay flat (an hour and 50 minutes).
	@TRANSSHIP_SOAK_S=600 TRANSSHIP_FLAT_S=3600 tests/faults.sh tests/faults/test_load.py

simulate:        ## Run client, manager and server core on simulated time, network, disk and containers: make simulate SEEDS=100000, or one again: SEED=7
	@tests/simulate.sh

test-matrix:     ## Run the SQL tests on PostgreSQL 17 and 18 as well, each in a container built for it.
	@tests/test_matrix.sh

userns:          ## Run the manager's tests of containers on a Docker daemon of their own with user namespaces, as root on Debian.
	@tests/userns.sh

core-regression: ## Run PostgreSQL's own regression suite with and without the library preloaded.
	@tests/core_regression.sh

differential:    ## Ask random questions in two ways that must agree, in the database that installcheck left: make differential QUESTIONS=2000 SEED=7
	@tests/differential.sh $(or $(QUESTIONS),2000) $(or $(SEED),1)

sqlsmith:        ## Ask what Debian's sqlsmith writes, and fail if the server crashes: make sqlsmith QUERIES=1000 SEED=7
	@tests/sqlsmith.sh $(or $(QUERIES),1000) $(or $(SEED),1)

fuzz:            ## Fuzz every reader of foreign bytes, 10 minutes each, on a nightly toolchain with cargo-fuzz: make fuzz FUZZ_SECONDS=60 FUZZERS="columns parquet"
	@tests/fuzz.sh $(FUZZERS)

asan:            ## Test both shared objects, the server core and the codecs under AddressSanitizer, on a nightly toolchain: make asan PARTS="core postgres mssql"
	@tests/sanitizers.sh asan $(PARTS)

miri:            ## Test the type table and the codecs under Miri, on a nightly toolchain with that component.
	@tests/sanitizers.sh miri

lifted-regression: ## Run PostgreSQL's own tests with ordinary functions lifted, in every form, on PostgreSQL 15, 17 and 18.
	@tests/lifted_regression.sh --all-forms
	@LIFTED=--all-forms tests/test_matrix.sh

pg:              ## Start a private cluster and manager with a few sample functions.
	@scripts/pg.sh

pg-dsn:          ## Print the connection string of that cluster.
	@scripts/cluster.sh dsn

pg-env:          ## Print what the command line `transship` needs to know of that manager, for eval.
	@scripts/manager.sh env

pg-stop:         ## Stop that cluster and manager.
	@scripts/cluster.sh stop
	@scripts/manager.sh stop
	@scripts/docker.sh stop

bench:           ## Measure, and write the results to bench/.
	@bench/run.sh

format:          ## Format the Rust code.
	@cargo fmt

clean: pg-stop   ## Stop everything private and delete what was built.
	@scripts/clean.sh

.PHONY: help build demo test form installcheck mssql mssqlcheck conformance conformance-faults templates faults soak simulate test-matrix userns core-regression differential sqlsmith fuzz asan miri lifted-regression pg pg-dsn pg-env pg-stop bench format clean
