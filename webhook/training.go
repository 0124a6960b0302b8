package webhook

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// training is the container that trains, within its pod.
type training struct {
	spec  *corev1.PodSpec
	index int
	// path is the container's field.
	path *field.Path
	// specPath is the pod spec's field.
	specPath *field.Path
	// line is the container's command.
	line commandLine
	// ranks per pod that memory is counted for.
	ranks int32
	// ranksLater: the number of ranks is in the command, in a value that admission does not know.
	ranksLater bool
	// ranksUnknown: devices are requested, and neither they nor the command give the number of ranks.
	ranksUnknown bool
	// least is the least number of pods that the launcher requests, if it requests a range, and leastFlag the flag; 0: it requests none.
	least     int32
	leastFlag string
	// keyPath returns the path of an annotation, present or not.
	keyPath func(key string) *field.Path
}

// findTraining finds the container that trains. annotations are those of the pod or of its template.
func findTraining(
	ctx context.Context,
	spec *corev1.PodSpec,
	annotations map[string]string,
	specPath *field.Path,
	s settings.Settings,
	keyPath func(string) *field.Path,
) (*training, field.ErrorList) {
	index, err := chooseContainer(ctx, spec, s.Container, annotations[defaultContainerKey], keyPath(v1alpha1.AnnotationContainer))
	if err != nil {
		return nil, field.ErrorList{err}
	}
	t := &training{spec: spec, index: index, path: specPath.Child("containers").Index(index), specPath: specPath, keyPath: keyPath}
	t.line = readCommand(ctx, t.container(), t.path)
	return t, nil
}

func (t *training) container() *corev1.Container { return &t.spec.Containers[t.index] }

// checkFresh refuses what prevents injection into a pod that was not injected yet. unread is why the image's command is unknown.
func (t *training) checkFresh(members int32, s settings.Settings, unread error) field.ErrorList {
	c := t.container()
	var errs field.ErrorList
	if err := t.checkCounted(s); err != nil {
		errs = append(errs, err)
	}
	if len(c.Command) == 0 {
		text := `holdfast starts the container's command and does not know the image's ENTRYPOINT: write it out, for example ["torchrun"], ["python", "-m", "torch.distributed.run"] or ["bash", "-c"]`
		if unread != nil {
			text += fmt.Sprintf("; image %s could not be read: %v", c.Image, unread)
		}
		errs = append(errs, field.Required(t.path.Child("command"), text))
	} else if i := slices.Index(c.Command, agentPath); i >= 0 {
		errs = append(errs, field.Invalid(t.path.Child("command").Index(i), agentPath, "is added by holdfast: write only your own command"))
	} else if i := slices.Index(c.Args, agentPath); i >= 0 {
		errs = append(errs, field.Invalid(t.path.Child("args").Index(i), agentPath, "is added by holdfast: write only your own command"))
	} else {
		errs = append(errs, t.checkLauncher(members)...)
	}
	if s.ShmBytes > 0 && t.hasShm() {
		errs = append(errs, field.Invalid(t.keyPath(v1alpha1.AnnotationShmSize), quantity(s.ShmBytes), "has no effect, as container "+c.Name+" has a /dev/shm of its own (a mount there, or hostIPC): remove the mount, or the key"))
	}
	for i, v := range t.spec.Volumes {
		// The names of storage and shared memory are ours only where they are added: pods of jobs that were admitted before
		// there were any may carry them.
		if v.Name == volumeRun || v.Name == volumeMemory || v.Name == volumeToken || v.Name == volumeStorage && s.StorageClaim != "" ||
			v.Name == volumeShm && t.sharedMemory(s) > 0 {
			errs = append(
				errs,
				field.Invalid(t.specPath.Child("volumes").Index(i).Child("name"), v.Name, "is a volume that holdfast adds: rename or remove it"),
			)
		}
	}
	for i, ic := range t.spec.InitContainers {
		if ic.Name == installContainer {
			errs = append(errs, field.Invalid(t.specPath.Child("initContainers").Index(i).Child("name"), ic.Name, "is a container that holdfast adds: rename or remove it"))
		}
	}
	for i, m := range c.VolumeMounts {
		if at := strings.TrimRight(m.MountPath, "/"); at == runPath || strings.HasPrefix(at, runPath+"/") {
			errs = append(errs, field.Invalid(t.path.Child("volumeMounts").Index(i).Child("mountPath"), m.MountPath, "lies under "+runPath+", which holdfast uses: mount elsewhere"))
		}
	}
	errs = append(errs, t.checkJobVariable("")...)
	for i, e := range c.Env {
		at := t.path.Child("env").Index(i)
		if settings.IsOurVariable(e.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), e.Name, "is written only by holdfast, as are all variables HOLDFAST_* except "+strings.Join(settings.Variables(), ", ")+": rename or remove it"))
			continue
		}
		if value := t.line.env[e.Name]; e.ValueFrom == nil && !strings.Contains(value, launch.Later) { // else its reader says what is wrong
			if problem := settings.CheckVariable(e.Name, value); problem != "" {
				errs = append(errs, field.Invalid(at.Child("value"), value, problem))
			}
		}
	}
	return errs
}

// checkJobVariable refuses a variable by which a container names another job than its pod's. Where the job is not known yet, "", the
// training container's own variables are checked by checkFresh.
func (t *training) checkJobVariable(job string) field.ErrorList {
	var errs field.ErrorList
	for i, c := range t.spec.Containers {
		for j, e := range c.Env {
			if e.Name == membership.JobVariable && e.Value != job && (job != "" || i != t.index) {
				errs = append(errs, field.Invalid(t.specPath.Child("containers").Index(i).Child("env").Index(j), e.Value,
					membership.JobVariable+" names the job of a pod and is written only by holdfast: remove it"))
			}
		}
	}
	return errs
}

// checkLauncher refuses what a launcher in the container's own command asks for and cannot have. One
// that a shell starts is read by the agent when it starts.
func (t *training) checkLauncher(members int32) field.ErrorList {
	if len(t.line.errs) > 0 {
		return t.line.errs
	}
	if !launch.IsLauncher(t.line.argv) {
		return t.checkDeepSpeed(members)
	}
	spec, err := launch.Parse(t.line.argv, t.line.env)
	if err == nil && members > 0 {
		err = spec.CheckNodes(int(members))
	}
	if err == nil {
		t.least, t.leastFlag = int32(spec.MinNodes), spec.NodesFlag
		return nil
	}
	flag, text := refusedFlag(err)
	return field.ErrorList{field.Invalid(t.flagPath(flag), flag, text)}
}

// launcherWarnings warns of a command that plainly starts its processes itself, so that they are restarted all together. Admission
// does not read scripts in the image, and a program may start a launcher that is served.
func (t *training) launcherWarnings() []string {
	argv := t.line.argv
	if len(argv) == 0 || launch.CommandTimeout(argv) == launch.NeverWhole {
		return nil
	}
	const whole = "restarted as a whole, on all pods, when it fails on one (condition LauncherRestarts); to restart only ranks write torchrun (or python -m torch.distributed.run)"
	for _, command := range launch.Plain(argv) {
		if launch.CommandTimeout(command) == 0 {
			return []string{fmt.Sprintf("%s: %s starts its processes itself, without holdfast: the command is %s instead", t.path.Child("command"), path.Base(command[0]), whole)}
		}
	}
	if startsPython(argv) && !launch.Hands(argv) {
		return []string{fmt.Sprintf("%s: starts Python without a launcher: unless the program starts one itself, each pod is one rank and the command is %s before the script", t.path.Child("command"), whole)}
	}
	return nil
}

// checkMixed refuses roles of which one starts its ranks with a launcher, and another plainly is one rank by its whole command: each would
// restart what the other continues.
func (o *subject) checkMixed() field.ErrorList {
	i := slices.IndexFunc(o.roles, func(r *role) bool { return r.t != nil && r.t.launches() })
	j := slices.IndexFunc(o.roles, func(r *role) bool { return r.t != nil && r.t.isWhole() })
	if i < 0 || j < 0 {
		return nil
	}
	whole := o.roles[j].t
	return field.ErrorList{field.Invalid(whole.path.Child("command"), strings.Join(whole.line.argv, " "), fmt.Sprintf(
		"runs as the one rank of its pod, and %s starts ranks with a launcher: no gang has both; start the ranks here with the same launcher, for example torchrun",
		o.roles[i].t.path.Child("command")))}
}

// launches reports whether the command certainly starts a launcher.
func (t *training) launches() bool {
	return slices.ContainsFunc(launch.Plain(t.line.argv), launch.IsLauncher)
}

// isWhole reports whether the command is a launcher that is not served, or a Python script that no launcher starts. A script that starts a
// launcher itself is taken for one that does not: one of another role names it.
func (t *training) isWhole() bool {
	argv := t.line.argv
	if len(argv) == 0 || launch.CommandTimeout(argv) == launch.NeverWhole {
		return false
	}
	return launch.IsPythonScript(argv) && !launch.Hands(argv) ||
		slices.ContainsFunc(launch.Plain(argv), func(command []string) bool { return launch.CommandTimeout(command) == 0 })
}

// hostsPath is where deepspeed reads the hosts of a job by default.
const hostsPath = "/job/hostfile"

// checkDeepSpeed refuses a deepspeed that plainly trains on each pod alone, or starts ranks on other machines without Holdfast.
func (t *training) checkDeepSpeed(members int32) field.ErrorList {
	hosts := slices.ContainsFunc(t.container().VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.MountPath == hostsPath || strings.TrimRight(m.MountPath, "/") == path.Dir(hostsPath)
	})
	for _, command := range launch.Plain(t.line.argv) {
		if !launch.IsDeepSpeed(command) {
			continue
		}
		if err := launch.CheckDeepSpeed(command, int(members), hosts); err != nil {
			flag, text := refusedFlag(err)
			return field.ErrorList{field.Invalid(t.flagPath(flag), flag, text)}
		}
	}
	return nil
}

// flagPath is the element of command, args or env that carries the flag or variable.
func (t *training) flagPath(flag string) *field.Path {
	c := t.container()
	name, _, _ := strings.Cut(flag, "=")
	carries := func(s string) bool { return name != "" && (s == flag || s == name || strings.HasPrefix(s, name+"=")) }
	for i, a := range c.Command {
		if carries(a) {
			return t.path.Child("command").Index(i)
		}
	}
	for i, a := range c.Args {
		if carries(a) {
			return t.path.Child("args").Index(i)
		}
	}
	for i, e := range c.Env {
		if e.Name == name {
			return t.path.Child("env").Index(i).Child("value")
		}
	}
	return t.path.Child("command")
}
