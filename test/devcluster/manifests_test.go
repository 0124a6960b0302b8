package devcluster_test

// workload is what TestCluster inspects: a probe and a reader of host paths on every node, and in a restricted namespace a web server in
// Python.
const workload = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: probe, namespace: default}
spec:
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: probe
        image: holdfast.dev/dev/base:1
        command: [bash, -c, "echo hello from $NODE; exec sleep 100000"]
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        resources: {limits: {nvidia.com/gpu: 1, memory: 128Mi, cpu: 200m}}
        volumeMounts: [{name: mem, mountPath: /mem}]
      volumes: [{name: mem, emptyDir: {medium: Memory, sizeLimit: 32Mi}}]
---
` + privileged + `
---
apiVersion: v1
kind: Namespace
metadata: {name: train, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: python, namespace: train}
spec: {accessModes: [ReadOnlyMany], storageClassName: holdfast-python, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared, namespace: train}
spec: {accessModes: [ReadWriteMany], storageClassName: holdfast-shared, resources: {requests: {storage: 1Gi}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: writer, namespace: train}
spec:
  selector: {matchLabels: {app: writer}}
  template:
    metadata: {labels: {app: writer}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {runAsNonRoot: true, runAsUser: 1000, fsGroup: 2000, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: writer
        image: holdfast.dev/dev/base:1
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
        command: [sleep, "100000"]
        volumeMounts: [{name: shared, mountPath: /shared}]
      volumes: [{name: shared, persistentVolumeClaim: {claimName: shared}}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: train}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: peers, namespace: train}
spec: {selector: {app: web}, clusterIP: None, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: train, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  hostname: one
  subdomain: peers
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: web
    image: holdfast.dev/dev/base:1
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
    command: [/opt/holdfast-python/venv/bin/python3, -m, http.server, "8080", --directory, /var/tmp]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    volumeMounts: [{name: python, mountPath: /opt/holdfast-python, readOnly: true}]
  volumes: [{name: python, persistentVolumeClaim: {claimName: python, readOnly: true}}]
`

// privileged pods see their node's own files.
const privileged = `
apiVersion: v1
kind: Pod
metadata: {name: kmsg-1, namespace: default, labels: {app: kmsg}}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: n1
  containers:
  - name: reader
    image: holdfast.dev/dev/base:1
    command: [sleep, "100000"]
    volumeMounts: [{name: kmsg, mountPath: /host/kmsg}, {name: sys, mountPath: /host/sys, readOnly: true}]
  volumes: [{name: kmsg, hostPath: {path: /dev/kmsg}}, {name: sys, hostPath: {path: /sys}}]
---
apiVersion: v1
kind: Pod
metadata: {name: kmsg-2, namespace: default, labels: {app: kmsg}}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: n2
  containers:
  - name: reader
    image: holdfast.dev/dev/base:1
    command: [sleep, "100000"]
    volumeMounts: [{name: kmsg, mountPath: /host/kmsg}, {name: sys, mountPath: /host/sys, readOnly: true}]
  volumes: [{name: kmsg, hostPath: {path: /dev/kmsg}}, {name: sys, hostPath: {path: /sys}}]
`

// simulated is one pod with 8 GPUs per simulated node.
const simulated = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: sim, namespace: default}
spec:
  replicas: 30
  selector: {matchLabels: {app: sim}}
  template:
    metadata: {labels: {app: sim}}
    spec:
      nodeSelector: {devcluster.holdfast.dev/simulated: "true"}
      containers:
      - name: rank
        image: example.com/never-pulled:1
        resources: {limits: {nvidia.com/gpu: 8}}
`
