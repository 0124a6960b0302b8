package webhook

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/translate"
)

// training is the container that trains, within its pod.
type training struct {
	spec  *corev1.PodSpec
	index int
	// path is the container's field.
	path *field.Path
	// specPath is the pod spec's field.
	specPath *field.Path
	// ranks per pod that memory is counted for.
	ranks int32
}

// findTraining finds the container that the settings name, or the first one, and counts its ranks.
func findTraining(spec *corev1.PodSpec, specPath *field.Path, s translate.Settings, keyPath *field.Path) (*training, field.ErrorList) {
	index := -1
	names := make([]string, len(spec.Containers))
	for i, c := range spec.Containers {
		names[i] = c.Name
		if index < 0 && (s.Container == "" || s.Container == c.Name) {
			index = i
		}
	}
	if index < 0 {
		return nil, field.ErrorList{field.Invalid(keyPath, s.Container, "names no container of the pod: write one of "+strings.Join(names, ", "))}
	}
	t := &training{spec: spec, index: index, path: specPath.Child("containers").Index(index), specPath: specPath}
	t.ranks = t.countRanks(s)
	return t, nil
}

func (t *training) container() *corev1.Container { return &t.spec.Containers[t.index] }

// countRanks says how many ranks the pod will have, as far as can be known at admission.
func (t *training) countRanks(s translate.Settings) int32 {
	if s.Ranks > 0 {
		return s.Ranks
	}
	c := t.container()
	gpus := gpusOf(c)
	if argv, env, ok := commandLine(c); ok && launch.IsLauncher(argv) {
		spec, err := launch.Parse(argv, env)
		if err == nil && spec.Ranks == launch.RanksAuto {
			spec, err = spec.Resolve(int(gpus), 0)
		}
		if err == nil && spec.Ranks > 0 {
			return int32(spec.Ranks)
		}
	}
	return max(gpus, 1)
}

// gpuResource is what one rank usually has one of.
const gpuResource = corev1.ResourceName("nvidia.com/gpu")

func gpusOf(c *corev1.Container) int32 {
	q, ok := c.Resources.Limits[gpuResource]
	if !ok {
		q = c.Resources.Requests[gpuResource]
	}
	return int32(q.Value())
}

// checkFresh refuses what stands in the way of injection into a pod that was not injected yet.
func (t *training) checkFresh(members int32, s translate.Settings) field.ErrorList {
	c := t.container()
	var errs field.ErrorList
	if len(c.Command) == 0 {
		errs = append(errs, field.Required(t.path.Child("command"),
			`holdfast starts the container's command and cannot know the image's ENTRYPOINT: write it out, for example ["torchrun"], ["python", "-m", "torch.distributed.run"] or ["bash", "-c"]`))
	} else if c.Command[0] == agentPath {
		errs = append(errs, field.Invalid(t.path.Child("command").Index(0), c.Command[0], "is put there by holdfast: write your own command alone"))
	} else {
		errs = append(errs, t.checkLauncher(members)...)
	}
	for i, v := range t.spec.Volumes {
		// The storage volume's name is ours only where storage is on: pods of jobs that were admitted before
		// there was storage may carry it.
		if v.Name == volumeRun || v.Name == volumeMemory || v.Name == volumeToken || v.Name == volumeStorage && s.StorageClaim != "" {
			errs = append(errs, field.Invalid(t.specPath.Child("volumes").Index(i).Child("name"), v.Name, "is a volume that holdfast adds: rename or remove it"))
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
	for i, e := range c.Env {
		if strings.HasPrefix(e.Name, "HOLDFAST_") {
			errs = append(errs, field.Invalid(t.path.Child("env").Index(i).Child("name"), e.Name, "variables named HOLDFAST_* are written by holdfast alone: rename or remove it"))
		}
	}
	return errs
}

// checkLauncher refuses what a launcher in the container's own command asks for and cannot have. One
// that a shell starts is read by the agent when it starts.
func (t *training) checkLauncher(members int32) field.ErrorList {
	c := t.container()
	argv, env, ok := commandLine(c)
	if !ok || !launch.IsLauncher(argv) {
		return nil
	}
	spec, err := launch.Parse(argv, env)
	if err == nil && members > 0 {
		err = spec.CheckNodes(int(members))
	}
	if err == nil {
		return nil
	}
	flag, text := "", err.Error()
	var refusal *launch.Refusal
	if errors.As(err, &refusal) {
		flag = refusal.Flag
		text = refusal.Why
		if refusal.Remedy != "" {
			text += "; " + refusal.Remedy
		}
	}
	return field.ErrorList{field.Invalid(t.flagPath(flag), flag, text)}
}

// launcherWarnings says where the command plainly starts Python without a launcher: the gang would wait for one for ever. What a
// script of the image's does cannot be known here, and a program may start the launcher itself, so this is no refusal.
func (t *training) launcherWarnings() []string {
	argv, _, ok := commandLine(t.container())
	text := strings.Join(argv, " ")
	if !ok || len(argv) == 0 || strings.Contains(text, "torchrun") || strings.Contains(text, "torch.distributed") || !startsPython(argv) {
		return nil
	}
	return []string{fmt.Sprintf("%s: starts Python without a launcher; unless the program starts one itself, the gang waits for it for ever: write torchrun (or python -m torch.distributed.run) before the script", t.path.Child("command"))}
}

// startsPython says whether the command is a Python interpreter, or a shell that is given a text which names one.
func startsPython(argv []string) bool {
	switch name := path.Base(argv[0]); {
	case strings.HasPrefix(name, "python"):
		return true
	case name == "sh" || name == "bash" || name == "dash":
		return slices.ContainsFunc(argv[1:], func(a string) bool { return strings.HasPrefix(a, "-") && strings.HasSuffix(a, "c") }) && strings.Contains(strings.Join(argv, " "), "python")
	}
	return false
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

// commandLine is what the container starts, with references to its plain variables resolved, and those
// variables; ok is false where a reference cannot be known at admission.
func commandLine(c *corev1.Container) (argv []string, env map[string]string, ok bool) {
	env = map[string]string{}
	hidden := map[string]bool{}
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			hidden[e.Name] = true
			delete(env, e.Name)
			continue
		}
		value, _ := expand(e.Value, env, nil)
		env[e.Name] = value
	}
	for _, a := range append(append([]string{}, userCommand(c.Command)...), c.Args...) {
		text, known := expand(a, env, hidden)
		if !known || len(c.EnvFrom) > 0 && strings.Contains(text, "$(") {
			return nil, nil, false
		}
		argv = append(argv, text)
	}
	return argv, env, true
}

// userCommand is the command without what injection put before it.
func userCommand(command []string) []string {
	if len(command) > len(wrapper) && command[0] == agentPath {
		return command[len(wrapper):]
	}
	return command
}

// expand resolves $(NAME) the way the kubelet does: $$ is a dollar sign and an unknown name stays as it
// is. known is false where a name in hidden is used.
func expand(s string, env map[string]string, hidden map[string]bool) (out string, known bool) {
	var b strings.Builder
	known = true
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch end := strings.IndexByte(s[i:], ')'); {
		case s[i+1] == '$':
			b.WriteByte('$')
			i++
		case s[i+1] == '(' && end > 0:
			name := s[i+2 : i+end]
			value, set := env[name]
			if hidden[name] {
				known = false
			}
			if !set {
				value = fmt.Sprintf("$(%s)", name)
			}
			b.WriteString(value)
			i += end
		default:
			b.WriteByte('$')
		}
	}
	return b.String(), known
}
