//! A file for Kubernetes: a deployment whose pods have a server and the gateway before it, its configuration, and the service.

use std::fmt::Write as _;

use udf_project::manifest::Manifest;

use super::gateway::{self, HEALTH, SECRETS, SOCKETS, Server};
use super::{FLIGHT_PORT, Image, JSON_PORT, TMP_MB, quote};
use crate::sandbox::REPLICA_ID;

/// What a container may keep on its node, in MB: its logs, of which kubelets keep five files of 10 MB, and no more.
const LOGS_MB: u64 = 128;

/// What no container of the pod may do.
const LOCKED_DOWN: &str = r#"          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
"#;

pub(super) fn describe(manifest: &Manifest, image: &Image, name: &str, gateway_image: &str) -> String {
    let (limits, replicas) = (&manifest.limits, manifest.replicas);
    let labels = format!("app.kubernetes.io/name: {name}");
    let server = Server { flight_port: FLIGHT_PORT, json_port: JSON_PORT, sockets: SOCKETS.to_string() };
    let mut file = format!(
        r#"# Functions of image {image}, for Kubernetes. Each server is reached through the gateway in its pod alone, which asks for TLS
# and for a token. It needs a secret:
#   kubectl create secret generic {name}-gateway --from-file=certificate.pem --from-file=key.pem --from-file=tokens
# certificate.pem is its certificate, followed by those that vouch for it, and tokens has a token per line; lines that begin with #
# are comments. The gateway reads them when it starts: after a change,  kubectl rollout restart deployment {name}
# How many processes a container may have is the kubelet's to say (podPidsLimit).
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
{configuration}  start.sh: |
{start}---
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
{pull_policy}          env:
            - name: TRANSSHIP_SOCKET_DIR
              value: {SOCKETS}
          resources:
            limits:
              cpu: "{cpus}"
              memory: {memory_mb}Mi
              ephemeral-storage: {LOGS_MB}Mi
{gpus}{LOCKED_DOWN}{probes}          volumeMounts:
            - name: sockets
              mountPath: {SOCKETS}
            - name: functions-tmp
              mountPath: /tmp
        - name: gateway
          image: {gateway_image}
          command: [sh, /etc/gateway/start.sh]
          ports:
            - name: flight
              containerPort: {FLIGHT_PORT}
            - name: json
              containerPort: {JSON_PORT}
          resources:
            limits:
              cpu: "1"
              memory: {gateway_mb}Mi
              ephemeral-storage: {LOGS_MB}Mi
{LOCKED_DOWN}          livenessProbe:
            tcpSocket:
              port: json
"#,
        image = manifest.image(),
        configuration = gateway::indented(&gateway::configuration(&[server]), 4),
        start = gateway::indented(&gateway::start("/etc/gateway/nginx.conf"), 4),
        reference = quote(&image.reference),
        pull_policy = if image.is_local { "          imagePullPolicy: Never\n" } else { "" },
        gateway_image = quote(gateway_image),
        cpus = limits.cpus,
        memory_mb = limits.memory_mb,
        gpus = match limits.gpus {
            0 => String::new(),
            gpus => format!("              nvidia.com/gpu: {gpus}\n"),
        },
        gateway_mb = gateway::MEMORY_MB,
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
          emptyDir:
            medium: Memory
            sizeLimit: {TMP_MB}Mi
        - name: gateway-tmp
          emptyDir:
            medium: Memory
            sizeLimit: {gateway_tmp_mb}Mi
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
---
{remark}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {name}
  labels:
    {labels}
spec:
  podSelector:
    matchLabels:
      {labels}
  policyTypes: [{policies}]
  ingress:
    - ports:
        - port: {FLIGHT_PORT}
        - port: {JSON_PORT}
{egress}"#,
        gateway_tmp_mb = gateway::TMP_MB,
        remark = match limits.network {
            true =>
                "# Only the gateway's ports are reached. The functions asked for a network: they may open connections.",
            false =>
                "# Only the gateway's ports are reached. The functions asked for no network: they answer, and open no connections.",
        },
        policies = if limits.network { "Ingress" } else { "Ingress, Egress" },
        egress = if limits.network { "" } else { "  egress: []\n" },
    );
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
