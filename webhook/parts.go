package webhook

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// Names and paths of what is injected.
const (
	installContainer = "holdfast-install"
	volumeRun        = "holdfast"
	volumeMemory     = "holdfast-memory"
	volumeToken      = "holdfast-token"
	volumeStorage    = "holdfast-storage"
	volumeShm        = "holdfast-shm"

	runPath    = "/run/holdfast"
	memoryPath = runPath + "/memory"
	tokenPath  = runPath + "/token"
	agentPath  = runPath + "/bin/holdfast-agent"

	storagePath = runPath + "/storage"
)

// tokenSeconds is how long one token is good for; the kubelet renews the file at 80 % of it.
const tokenSeconds = 3600

// nobody is the user of the install container if the trainer runs as root.
const nobody = 65532

// wrapper stands before the user's command.
var wrapper = []string{agentPath, "init", "--"}

// addParts adds what is not there yet: volumes, pull secrets, the install container, mounts, environment, the wrapped command.
// Everything is appended to its list, so that items of other webhooks keep their index. again: the pod was injected before, and
// another webhook may have put its own command before ours.
func (t *training) addParts(cfg Config, d demand, s settings.Settings, job types.UID, again bool, install corev1.ResourceList) {
	c := t.container()
	volumes, mounts := parts(d, s.StorageClaim)
	for _, v := range volumes {
		t.spec.Volumes = appendNew(t.spec.Volumes, v, func(v corev1.Volume) string { return v.Name })
	}
	for _, name := range cfg.PullSecrets {
		t.spec.ImagePullSecrets = appendNew(
			t.spec.ImagePullSecrets,
			corev1.LocalObjectReference{Name: name},
			func(r corev1.LocalObjectReference) string { return r.Name },
		)
	}
	t.spec.InitContainers = appendNew(t.spec.InitContainers, t.install(cfg, install), func(c corev1.Container) string { return c.Name })
	for _, m := range mounts {
		c.VolumeMounts = appendNew(c.VolumeMounts, m, func(m corev1.VolumeMount) string { return m.MountPath })
	}
	if !t.ownsShm() { // any more: other webhooks may have added containers since
		c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == shmVariable })
	}
	for _, e := range t.environment(cfg, s, job) {
		c.Env = appendNew(c.Env, e, func(e corev1.EnvVar) string { return e.Name })
	}
	t.restartWhole(cfg.Minor)
	if !again || !mentionsAgent(c) {
		c.Command = append(append([]string{}, wrapper...), c.Command...)
	}
}

// appendNew appends item unless the list has one with the same key.
func appendNew[T any](list []T, item T, key func(T) string) []T {
	for _, have := range list {
		if key(have) == key(item) {
			return list
		}
	}
	return append(list, item)
}

// parts are the pod's volumes and where the training container mounts them.
func parts(d demand, claim string) ([]corev1.Volume, []corev1.VolumeMount) {
	volumes := []corev1.Volume{
		{Name: volumeRun, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: volumeToken, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: v1alpha1.TokenAudience, ExpirationSeconds: ptr.To[int64](tokenSeconds), Path: "token"}}}}}},
	}
	mounts := []corev1.VolumeMount{
		{Name: volumeRun, MountPath: runPath},
		{Name: volumeToken, MountPath: tokenPath, ReadOnly: true},
	}
	if d.Volume > 0 {
		volumes = append(volumes, inMemory(volumeMemory, d.Volume))
		mounts = append(mounts, corev1.VolumeMount{Name: volumeMemory, MountPath: memoryPath})
	}
	if d.Shm > 0 {
		volumes = append(volumes, inMemory(volumeShm, d.Shm))
		mounts = append(mounts, corev1.VolumeMount{Name: volumeShm, MountPath: shmPath})
	}
	if claim != "" {
		volumes = append(volumes, corev1.Volume{Name: volumeStorage, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
		mounts = append(mounts, corev1.VolumeMount{Name: volumeStorage, MountPath: storagePath})
	}
	return volumes, mounts
}

func inMemory(name string, size int64) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: resource.NewQuantity(size, resource.BinarySI)}}}
}

// environment is the agent's environment.
func (t *training) environment(cfg Config, s settings.Settings, job types.UID) []corev1.EnvVar {
	standbys := "off"
	if s.Standbys {
		standbys = "auto"
	}
	from := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	grace, _ := t.graceAfterHook()
	env := []corev1.EnvVar{
		{Name: "HOLDFAST_COORDINATOR", Value: cfg.Coordinator},
		{Name: "HOLDFAST_COORDINATOR_CA", Value: cfg.CoordinatorCA},
		from("HOLDFAST_GANG", "metadata.labels['"+v1alpha1.LabelGang+"']"),
		from("HOLDFAST_GANG_SIZE", "metadata.annotations['"+v1alpha1.AnnotationGangSize+"']"),
		from("HOLDFAST_NAMESPACE", "metadata.namespace"),
		from("HOLDFAST_POD_UID", "metadata.uid"),
		from("HOLDFAST_POD_IP", "status.podIP"),
		from("HOLDFAST_TOPOLOGY_DOMAIN", "metadata.annotations['"+v1alpha1.AnnotationTopologyDomain+"']"),
		{Name: "HOLDFAST_RANKS", Value: strconv.Itoa(int(t.ranks))},
		{Name: "HOLDFAST_STATE_BYTES", Value: strconv.FormatInt(s.StateBytes, 10)},
		{Name: "HOLDFAST_STANDBYS", Value: standbys},
		{Name: "HOLDFAST_GRACE_SECONDS", Value: strconv.FormatInt(grace, 10)},
		{Name: membership.JobVariable, Value: string(job)},
	}
	if t.spec.HostNetwork {
		env = append(env, corev1.EnvVar{Name: "HOLDFAST_NETWORK", Value: "host"})
	}
	if t.ownsShm() {
		env = append(env, corev1.EnvVar{Name: shmVariable, Value: "own"})
	}
	if len(cfg.CoordinatorAddresses) > 0 {
		env = append(env, corev1.EnvVar{Name: "HOLDFAST_COORDINATOR_ADDRESSES", Value: strings.Join(cfg.CoordinatorAddresses, ",")})
	}
	if s.MasterPorts != (settings.Ports{}) {
		env = append(env, corev1.EnvVar{Name: "HOLDFAST_MASTER_PORT", Value: s.MasterPorts.String()},
			from("HOLDFAST_SLOT", "metadata.annotations['"+v1alpha1.AnnotationGangSlot+"']"))
	}
	if s.StandbySkip != "" && s.Standbys {
		env = append(env, corev1.EnvVar{Name: "HOLDFAST_STANDBY_SKIP_MODULES", Value: s.StandbySkip})
	}
	if s.Slots != 0 {
		env = append(env, corev1.EnvVar{Name: "HOLDFAST_SLOTS", Value: strconv.Itoa(int(s.Slots))})
	}
	if s.LimitRestarts {
		env = append(env, corev1.EnvVar{Name: "HOLDFAST_MAX_RESTARTS", Value: strconv.Itoa(int(s.MaxRestarts))})
	}
	if s.StorageClaim != "" {
		env = append(env, corev1.EnvVar{Name: "HOLDFAST_STORAGE", Value: storagePath})
	}
	return env
}

// graceSeconds is the time from the pod's deletion to SIGKILL, unless the deletion sets another one.
func graceSeconds(spec *corev1.PodSpec) int64 {
	if spec.TerminationGracePeriodSeconds == nil {
		return corev1.DefaultTerminationGracePeriodSeconds
	}
	return *spec.TerminationGracePeriodSeconds
}

// install is the init container that copies the agent into the pod. It passes the restricted profile.
func (t *training) install(cfg Config, resources corev1.ResourceList) corev1.Container {
	user, group := t.identity()
	return corev1.Container{
		Name:            installContainer,
		Image:           cfg.AgentImage,
		ImagePullPolicy: cmp.Or(cfg.PullPolicy, corev1.PullIfNotPresent),
		Command:         []string{"/holdfast-agent", "install", runPath},
		Resources:       t.installResources(resources),
		VolumeMounts:    []corev1.VolumeMount{{Name: volumeRun, MountPath: runPath}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false),
			ReadOnlyRootFilesystem:   ptr.To(true),
			RunAsNonRoot:             ptr.To(true),
			RunAsUser:                user,
			RunAsGroup:               group,
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}

// identity is the user of the install container: that of the training container, or nobody if that is root. Nil leaves it to the
// pod's own setting or the agent image's user.
func (t *training) identity() (user, group *int64) {
	var podUser *int64
	if pc := t.spec.SecurityContext; pc != nil {
		podUser = pc.RunAsUser
	}
	if cc := t.container().SecurityContext; cc != nil {
		user, group = cc.RunAsUser, cc.RunAsGroup
	}
	effective := user
	if effective == nil {
		effective = podUser
	}
	if effective != nil && *effective == 0 {
		return ptr.To[int64](nobody), nil
	}
	return user, group
}

// installResources are small and the same for request and limit, so that a Guaranteed pod stays so;
// a pod that asks for no CPU and no memory, or that shares a budget of its own, gets none. instead has other values, by kind.
func (t *training) installResources(instead corev1.ResourceList) corev1.ResourceRequirements {
	if sharesBudget(t.spec) || qosClass(t.spec) == corev1.PodQOSBestEffort {
		return corev1.ResourceRequirements{}
	}
	cpu := resource.MustParse("100m")
	if want := t.container().Resources.Requests.Cpu(); want.Cmp(cpu) > 0 {
		cpu = resource.MustParse("500m")
		if want.Cmp(cpu) < 0 {
			cpu = want.DeepCopy()
		}
	}
	list := func() corev1.ResourceList {
		all := corev1.ResourceList{corev1.ResourceCPU: cpu, corev1.ResourceMemory: resource.MustParse("64Mi")}
		for kind, q := range instead {
			all[kind] = q.DeepCopy()
		}
		return all
	}
	return corev1.ResourceRequirements{Requests: list(), Limits: list()}
}

// maxInstallResources limits that annotation: the time to parse digits grows with their square.
const maxInstallResources = 512

// installOverrides are what the Job's admission wrote for the install container; none where it wrote nothing.
func installOverrides(annotations map[string]string) (list corev1.ResourceList) {
	text := annotations[v1alpha1.AnnotationInstallResources]
	if len(text) > maxInstallResources || json.Unmarshal([]byte(text), &list) != nil {
		return nil
	}
	maps.DeleteFunc(list, func(kind corev1.ResourceName, q resource.Quantity) bool {
		return kind != corev1.ResourceCPU && kind != corev1.ResourceMemory && kind != corev1.ResourceEphemeralStorage || q.Sign() <= 0
	})
	return list
}
