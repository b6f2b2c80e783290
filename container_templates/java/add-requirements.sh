#!/bin/sh
# Adds the project's packages, group:artifact:version, to the server's and copies all of them again.
set -eu
dependencies=$(sed -n 's,^\([^:]*\):\([^:]*\):\([^:]*\)$,<dependency><groupId>\1</groupId><artifactId>\2</artifactId><version>\3</version></dependency>,p' project-requirements.txt | tr -d '\n')
if [ "$(grep -c . project-requirements.txt)" != "$(grep -c '^[^:]*:[^:]*:[^:]*$' project-requirements.txt)" ]; then
  echo "requirements are written group:artifact:version" >&2
  exit 1
fi
sed -i "s,<!-- project -->,$dependencies," pom.xml
rm -r lib
mvn --batch-mode --quiet dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=lib
