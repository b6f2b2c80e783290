//! A file for Kubernetes: a deployment whose pods have a server and the gateway before it, its configuration, and the service.

use std::fmt::Write as _;

use udf_protocol::manifest::Manifest;

use super::gateway::{self, HEALTH, SECRETS, SOCKETS, Server};
use super::{FLIGHT_PORT, JSON_PORT, quote};
use crate::sandbox::REPLICA_ID;

/// What no container of the pod may do.
const LOCKED_DOWN: &str = r#"          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
"#;

pub(super) fn describe(manifest: &Manifest, reference: &str, name: &str, gateway_image: &str) -> String {
    let (limits, replicas) = (&manifest.limits, manifest.replicas);
    let labels = format!("app.kubernetes.io/name: {name}");
    let server = Server { flight_port: FLIGHT_PORT, json_port: JSON_PORT, sockets: SOCKETS.to_string() };
    let mut file = format!(
        r#"# Functions of image {image}, for Kubernetes. Each server is reached through the gateway in its pod alone, which asks for TLS
# and for a token. It needs a secret:
#   kubectl create secret generic {name}-gateway --from-file=certificate.pem --from-file=key.pem --from-file=tokens
# certificate.pem is its certificate, followed by those that vouch for it, and tokens has a line per token: "Bearer TOKEN" 1;
# The service has no address of its own: its name stands for all replicas, among which engines balance. They reach it at
# grpcs://{name}:{FLIGHT_PORT} and https://{name}:{JSON_PORT}.
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}-gateway
  labels:
    {labels}
data:
  nginx.conf: |
{configuration}---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
  labels:
    {labels}
spec:
  replicas: {replicas}
  selector:
    matchLabels:
      {labels}
  template:
    metadata:
      labels:
        {labels}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 15
      securityContext:
        runAsNonRoot: true
        runAsUser: {REPLICA_ID}
        runAsGroup: {REPLICA_ID}
        fsGroup: {REPLICA_ID}
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: functions
          image: {reference}
          env:
            - name: TRANSSHIP_SOCKET_DIR
              value: {SOCKETS}
          resources:
            limits:
              cpu: "{cpus}"
              memory: {memory_mb}Mi
{LOCKED_DOWN}{probes}          volumeMounts:
            - name: sockets
              mountPath: {SOCKETS}
            - name: functions-tmp
              mountPath: /tmp
        - name: gateway
          image: {gateway_image}
          command: [nginx, -c, /etc/gateway/nginx.conf, -g, "daemon off;"]
          ports:
            - name: flight
              containerPort: {FLIGHT_PORT}
            - name: json
              containerPort: {JSON_PORT}
          resources:
            limits:
              cpu: "1"
              memory: 256Mi
{LOCKED_DOWN}          livenessProbe:
            tcpSocket:
              port: json
"#,
        image = manifest.image(),
        configuration = gateway::indented(&gateway::configuration(&[server]), 4),
        reference = quote(reference),
        gateway_image = quote(gateway_image),
        cpus = limits.cpus,
        memory_mb = limits.memory_mb,
        probes = probes(),
    );
    let _ = write!(
        file,
        r#"          volumeMounts:
            - name: sockets
              mountPath: {SOCKETS}
            - name: configuration
              mountPath: /etc/gateway
              readOnly: true
            - name: secrets
              mountPath: {SECRETS}
              readOnly: true
            - name: gateway-tmp
              mountPath: /tmp
      volumes:
        - name: sockets
          emptyDir:
            medium: Memory
            sizeLimit: 1Mi
        - name: functions-tmp
          emptyDir: {{}}
        - name: gateway-tmp
          emptyDir: {{}}
        - name: configuration
          configMap:
            name: {name}-gateway
        - name: secrets
          secret:
            secretName: {name}-gateway
            defaultMode: 0440
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
  labels:
    {labels}
spec:
  clusterIP: None
  selector:
    {labels}
  ports:
    - name: flight
      port: {FLIGHT_PORT}
      targetPort: flight
    - name: json
      port: {JSON_PORT}
      targetPort: json
"#
    );
    if !limits.network {
        let _ = write!(
            file,
            r#"---
# The functions asked for no network: they answer, and open no connections of their own.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {name}
spec:
  podSelector:
    matchLabels:
      {labels}
  policyTypes: [Egress]
  egress: []
"#
        );
    }
    file
}

/// A server is ready when it answers its greeting (docs/protocol.md §8), and alive as long as it does. The gateway asks it.
fn probes() -> String {
    let probe = |(name, period, failures)| {
        format!(
            r#"          {name}:
            httpGet:
              path: {HEALTH}
              port: {JSON_PORT}
              scheme: HTTPS
            periodSeconds: {period}
            timeoutSeconds: 5
            failureThreshold: {failures}
"#
        )
    };
    [("startupProbe", 1, 120), ("readinessProbe", 5, 2), ("livenessProbe", 10, 6)].map(probe).concat()
}
