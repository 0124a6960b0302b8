package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/settings"
)

// gangWords are how kubectl spells the resource of Gangs.
var gangWords = []string{"gang", "gangs", "gg", "gang.holdfast.dev", "gangs.holdfast.dev"}

// find reads the Gang of "KIND/NAME", where KIND is a kind of job as kubectl spells it, of "gang/NAME", or of "NAME".
func find(ctx context.Context, c client.Client, namespace, what string) (*v1alpha1.Gang, error) {
	word, name, typed := strings.Cut(what, "/")
	key := types.NamespacedName{Namespace: namespace, Name: name}
	switch {
	case typed && (word == "" || name == ""):
		return nil, fmt.Errorf("%q names no job: use %s", what, usable())
	case !typed:
		key.Name = what
		return gangOfName(ctx, c, key)
	case slices.Contains(gangWords, strings.ToLower(word)):
		return readGang(ctx, c, key)
	}
	k, err := kindNamed(c.RESTMapper(), word)
	if err != nil {
		return nil, err
	}
	return gangOfJob(ctx, c, k, key)
}

// usable is what people can write.
func usable() string {
	text := ""
	for _, k := range kinds.Served() {
		text += page.JobWord(k.GroupVersionKind().GroupKind()) + "/NAME, "
	}
	return strings.TrimSuffix(text, ", ") + " or gang/NAME"
}

// kindNamed is the kind of job that a word names, as kubectl reads such words: pytorchjob, jobs.batch.volcano.sh, vcjob.
func kindNamed(mapper meta.RESTMapper, word string) (kinds.Kind, error) {
	full, resource := schema.ParseResourceArg(strings.ToLower(word))
	kind, err := mapper.KindFor(resource.WithVersion(""))
	if full != nil {
		if versioned, none := mapper.KindFor(*full); none == nil {
			kind, err = versioned, nil
		}
	}
	switch {
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("this cluster serves no resource %q: use %s", word, usable())
	case err != nil:
		return nil, fmt.Errorf("reading which resources the cluster serves: %w", err)
	}
	if k, ok := kinds.Of(kind.GroupKind()); ok {
		return k, nil
	}
	return nil, fmt.Errorf("%s (%s) is no kind of job that Holdfast supports: use %s", word, kind.GroupKind(), usable())
}

// gangOfName reads the Gang of a name. Where several opted-in jobs have that name, the kind must be named.
func gangOfName(ctx context.Context, c client.Client, key types.NamespacedName) (*v1alpha1.Gang, error) {
	var names []string
	var kind kinds.Kind
	for _, k := range kinds.Served() {
		obj, err := readObject(ctx, c, k, key)
		if err != nil && !unreadable(err) {
			return nil, objectError(err, k, key)
		}
		if err != nil || partOf(obj) != nil {
			continue
		}
		if asked, _ := admission(k, obj); asked {
			names, kind = append(names, page.JobWord(k.GroupVersionKind().GroupKind())+"/"+key.Name), k
		}
	}
	switch len(names) {
	case 0:
		return readGang(ctx, c, key)
	case 1:
		return gangOfJob(ctx, c, kind, key)
	}
	return nil, fmt.Errorf("%d jobs in namespace %s have the name %s: write one of %s", len(names), key.Namespace, key.Name, strings.Join(names, ", "))
}

// readGang reads a Gang by its name.
func readGang(ctx context.Context, c client.Reader, key types.NamespacedName) (*v1alpha1.Gang, error) {
	g := &v1alpha1.Gang{}
	err := c.Get(ctx, key, g)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no gang %s in namespace %s: name another namespace with -n, or see all with kubectl get gangs -A", key.Name, key.Namespace)
	}
	return g, gangError(err, key)
}

// gangOfJob reads the Gang of a job's object, which has the object's name and names the object.
func gangOfJob(ctx context.Context, c client.Reader, k kinds.Kind, key types.NamespacedName) (*v1alpha1.Gang, error) {
	obj, err := readObject(ctx, c, k, key)
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("you may not read %s in namespace %s: name the job's Gang, gang/%s (%w)", resourceOf(k), key.Namespace, key.Name, err)
	case err != nil:
		return nil, objectError(err, k, key)
	}
	word := page.JobWord(k.GroupVersionKind().GroupKind())
	if owner := partOf(obj); owner != nil {
		whole := v1alpha1.JobReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name}
		return nil, fmt.Errorf("%s %s is a part of %s and has no Gang of its own: use %s",
			word, key.Name, page.JobTitle(key.Namespace, whole), page.JobName(whole))
	}
	g := &v1alpha1.Gang{}
	err = c.Get(ctx, key, g)
	switch ref := g.Spec.JobRef; {
	case apierrors.IsNotFound(err):
		return nil, noGang(k, obj)
	case err != nil:
		return nil, gangError(err, key)
	case ref.UID == string(obj.GetUID()):
		return g, nil
	case page.KindOf(ref) == k.GroupVersionKind().GroupKind():
		return nil, fmt.Errorf("gang %s in namespace %s belongs to an older job of the same name; the controller will replace it in a moment, try again", key.Name, key.Namespace)
	default:
		return nil, fmt.Errorf("%s %s has no Gang (%s): gang %s in namespace %s belongs to %s; create the %s again under another name, or see %s",
			word, key.Name, v1alpha1.ReasonGangNameTaken, key.Name, key.Namespace, page.JobTitle(key.Namespace, ref), word, page.JobName(ref))
	}
}

func gangError(err error, key types.NamespacedName) error {
	switch {
	case err == nil:
		return nil
	case meta.IsNoMatchError(err):
		return fmt.Errorf("this cluster has no Gangs (%w): install Holdfast with its manifests, then create the job again", err)
	}
	return fmt.Errorf("reading gang %s in namespace %s: %w", key.Name, key.Namespace, err)
}

func readObject(ctx context.Context, c client.Reader, k kinds.Kind, key types.NamespacedName) (*unstructured.Unstructured, error) {
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(k.GroupVersionKind())
	return obj, c.Get(ctx, key, obj)
}

// objectError says why a job's object could not be read.
func objectError(err error, k kinds.Kind, key types.NamespacedName) error {
	word := page.JobWord(k.GroupVersionKind().GroupKind())
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no %s %s in namespace %s: name another namespace with -n, or see all with kubectl get %s -A", word, key.Name, key.Namespace, resourceOf(k))
	case meta.IsNoMatchError(err):
		return fmt.Errorf("this cluster serves no %s: %w", resourceOf(k), err)
	}
	return fmt.Errorf("reading %s %s in namespace %s: %w", word, key.Name, key.Namespace, err)
}

// resourceOf names a kind's resource as kubectl does where only one has that name.
func resourceOf(k kinds.Kind) string {
	if _, batch := k.(kinds.BatchJob); batch {
		return k.Resource()
	}
	return k.Resource() + "." + k.GroupVersionKind().Group
}

// partOf is the object of another kind of job that an object belongs to, as a JobSet's Jobs do.
func partOf(obj *unstructured.Unstructured) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(obj)
	if owner == nil {
		return nil
	}
	if _, ok := kinds.Of(schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()); !ok {
		return nil
	}
	return owner
}

// admission reports whether an object asks for Holdfast, and whether it was admitted when it was created.
func admission(k kinds.Kind, obj *unstructured.Unstructured) (asked, admitted bool) {
	if _, batch := k.(kinds.BatchJob); batch {
		job := &batchv1.Job{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, job); err != nil {
			return false, false
		}
		_, admitted = settings.AdmittedJob(job)
		s, errs := settings.JobSettings(job)
		return admitted || s.Enabled && len(errs) == 0, admitted
	}
	job, _ := k.Read(obj)
	for _, r := range job.Roles {
		_, stamped := settings.AdmittedTemplate(r.Pod.Annotations)
		admitted = admitted || stamped
	}
	return admitted || settings.OptedIn(obj), admitted
}

// noGang says why a job has none and what to do.
func noGang(k kinds.Kind, obj *unstructured.Unstructured) error {
	word := page.JobWord(k.GroupVersionKind().GroupKind())
	asked, admitted := admission(k, obj)
	switch {
	case admitted:
		return fmt.Errorf("%s %s has no Gang yet: try again in a moment; if that does not help, check whether holdfast-controller runs in namespace %s", word, obj.GetName(), ownNamespace())
	case !asked:
		return fmt.Errorf(`%s %s is not opted in: create it with the annotation %s: "true"`, word, obj.GetName(), v1alpha1.AnnotationEnabled)
	}
	late := fmt.Sprintf(`%s %s was annotated with %s: "true" after it was created, and its pods cannot change any more: delete it and create it again with the annotation`, word, obj.GetName(), v1alpha1.AnnotationEnabled)
	if _, errs := k.Read(obj); len(errs) > 0 {
		return fmt.Errorf("%s; as it is it would be refused: %w", late, errs.ToAggregate())
	}
	return fmt.Errorf("%s", late)
}
