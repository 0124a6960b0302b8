package main

import (
	"context"
	"fmt"
	"os"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/doctor"
	"holdfast.dev/holdfast/internal/settings"
)

// factReader reads what doctor judges. It changes nothing but by trials.
type factReader struct {
	client.Client
	cfg       *rest.Config
	namespace string
	// admitted is the Job that the dry run returned; nil: it was refused.
	admitted *batchv1.Job
}

// facts reads all facts. Only a cluster that does not answer is an error; what this user may not read is a fact, too.
func (r *factReader) facts(ctx context.Context, leaving bool) (*doctor.Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	f := &doctor.Facts{At: time.Now(), Plugin: version, Namespace: r.namespace, Leaving: leaving, Installed: doctor.Names{
		Namespace: os.Getenv("HOLDFAST_NAMESPACE"), NodeNamespace: os.Getenv("HOLDFAST_NODE_NAMESPACE"), Prefix: os.Getenv("HOLDFAST_NAME_PREFIX"),
	}}
	server, err := discovery.NewDiscoveryClientForConfig(r.cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	// Not the mapper: kubectl's remembers for hours what a cluster serves.
	switch _, err := server.ServerResourcesForGroupVersion(v1alpha1.GroupVersion.String()); {
	case err == nil:
		f.Serves = true
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading which resources the cluster serves: %w", err)
	}
	if info, err := server.ServerVersion(); err != nil {
		f.Server.Unread = err.Error()
	} else {
		f.Server.Value = info.GitVersion
	}
	own, here := client.InNamespace(ownNamespace()), client.InNamespace(r.namespace)
	f.Nodes = listed(ctx, r, &corev1.NodeList{}, func(l *corev1.NodeList) []corev1.Node { return l.Items })
	f.Leases = listed(ctx, r, &coordinationv1.LeaseList{}, leasesOf, client.InNamespace(corev1.NamespaceNodeLease))
	f.Leaders = listed(ctx, r, &coordinationv1.LeaseList{}, leasesOf, own)
	f.Namespaces = listed(ctx, r, &corev1.NamespaceList{}, func(l *corev1.NamespaceList) []corev1.Namespace { return l.Items })
	f.Deployments = listed(ctx, r, &appsv1.DeploymentList{}, func(l *appsv1.DeploymentList) []appsv1.Deployment { return l.Items })
	f.DaemonSets = listed(ctx, r, &appsv1.DaemonSetList{}, func(l *appsv1.DaemonSetList) []appsv1.DaemonSet { return l.Items })
	f.Services = listed(ctx, r, &corev1.ServiceList{}, func(l *corev1.ServiceList) []corev1.Service { return l.Items }, own)
	f.Slices = listed(ctx, r, &discoveryv1.EndpointSliceList{}, slicesOf, own)
	f.SystemSlices = listed(ctx, r, &discoveryv1.EndpointSliceList{}, slicesOf, client.InNamespace(metav1.NamespaceSystem))
	f.OwnPolicies = listed(ctx, r, &networkingv1.NetworkPolicyList{}, policiesOf, own)
	f.Policies = listed(ctx, r, &networkingv1.NetworkPolicyList{}, policiesOf, here)
	f.Quotas = listed(ctx, r, &corev1.ResourceQuotaList{}, func(l *corev1.ResourceQuotaList) []corev1.ResourceQuota { return l.Items }, here)
	f.Ranges = listed(ctx, r, &corev1.LimitRangeList{}, func(l *corev1.LimitRangeList) []corev1.LimitRange { return l.Items }, here)
	f.Pods = listed(ctx, r, &corev1.PodList{}, podsOf, here, client.HasLabels{v1alpha1.LabelGang})
	f.NodePools = r.nodePools(ctx)
	if f.Serves {
		f.Gangs = listed(ctx, r, &v1alpha1.GangList{}, func(l *v1alpha1.GangList) []v1alpha1.Gang { return l.Items })
		if f.Gangs.Unread != "" && !leaving {
			f.Gangs = listed(ctx, r, &v1alpha1.GangList{}, func(l *v1alpha1.GangList) []v1alpha1.Gang { return l.Items }, here)
		}
		f.DryRun = r.dryRun(ctx)
	}
	if leaving {
		f.Pending = listed(ctx, r, &corev1.PodList{}, podsOf,
			client.MatchingFields{"spec.schedulerName": v1alpha1.SchedulerName, "spec.nodeName": "", "status.phase": string(corev1.PodPending)})
		f.Replaced = listed(ctx, r, &corev1.PodList{}, podsOf, client.HasLabels{v1alpha1.LabelReplaced})
	}
	f.Webhooks = r.webhooks(ctx)
	return f, nil
}

func leasesOf(l *coordinationv1.LeaseList) []coordinationv1.Lease               { return l.Items }
func slicesOf(l *discoveryv1.EndpointSliceList) []discoveryv1.EndpointSlice     { return l.Items }
func policiesOf(l *networkingv1.NetworkPolicyList) []networkingv1.NetworkPolicy { return l.Items }
func podsOf(l *corev1.PodList) []corev1.Pod                                     { return l.Items }

// listed lists objects, or says why they cannot be listed.
func listed[L client.ObjectList, T any](
	ctx context.Context,
	c client.Reader,
	list L,
	items func(L) []T,
	options ...client.ListOption,
) doctor.Read[[]T] {
	if err := c.List(ctx, list, options...); err != nil {
		return doctor.Read[[]T]{Unread: unreadWhy(err)}
	}
	return doctor.Read[[]T]{Value: items(list)}
}

// unreadWhy is why something could not be read, in a line.
func unreadWhy(err error) string {
	if s, ok := err.(apierrors.APIStatus); ok && apierrors.IsForbidden(err) && s.Status().Details != nil && s.Status().Details.Kind != "" {
		return "you may not list " + s.Status().Details.Kind
	}
	return err.Error()
}

func (r *factReader) webhooks(ctx context.Context) (read doctor.Read[*admissionregistrationv1.MutatingWebhookConfiguration]) {
	w := &admissionregistrationv1.MutatingWebhookConfiguration{}
	switch err := r.Get(ctx, client.ObjectKey{Name: ownName("holdfast")}, w); {
	case err == nil:
		read.Value = w
	case !apierrors.IsNotFound(err):
		read.Unread = unreadWhy(err)
	}
	return read
}

// nodePools reads Karpenter's NodePools; a cluster without Karpenter has none.
func (r *factReader) nodePools(ctx context.Context) (read doctor.Read[[]doctor.NodePool]) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: "NodePoolList"})
	if err := r.List(ctx, list); err != nil {
		if !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			read.Unread = unreadWhy(err)
		}
		return read
	}
	for i := range list.Items {
		grace, _, _ := unstructured.NestedString(list.Items[i].Object, "spec", "template", "spec", "terminationGracePeriod")
		read.Value = append(read.Value, doctor.NodePool{Name: list.Items[i].GetName(), Grace: grace})
	}
	return read
}

// dryRun asks the API server what it would make of an annotated Job.
func (r *factReader) dryRun(ctx context.Context) doctor.DryRun {
	job := trialJob("dry-run", r.namespace, "example.com/image", false)
	switch err := r.Create(ctx, job, client.DryRunAll); {
	case err == nil:
		r.admitted = job
		_, admitted := settings.AdmittedJob(job)
		return doctor.DryRun{Admitted: admitted}
	case notAllowed(err):
		return doctor.DryRun{NotAllowed: true}
	default:
		return doctor.DryRun{Refused: err.Error()}
	}
}

// trialJob is a Job of one small pod whose command looks up the coordinator's name.
func trialJob(name, namespace, image string, onNode bool) *batchv1.Job {
	pod := corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		HostNetwork:                   onNode,
		AutomountServiceAccountToken:  ptr.To(false),
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{
			Name: "doctor", Image: image,
			Command: []string{"/holdfast-agent", "reach", coordinatorName()},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: trialCPU, corev1.ResourceMemory: trialMemory},
				Limits:   corev1.ResourceList{corev1.ResourceCPU: trialCPU, corev1.ResourceMemory: trialMemory},
			},
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		}},
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: map[string]string{
			v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStandbys: "off", v1alpha1.AnnotationHang: "off",
		}},
		Spec: batchv1.JobSpec{
			CompletionMode: ptr.To(batchv1.IndexedCompletion), Completions: ptr.To[int32](1), Parallelism: ptr.To[int32](1),
			BackoffLimit: ptr.To[int32](0), TTLSecondsAfterFinished: ptr.To[int32](60),
			Template: corev1.PodTemplateSpec{Spec: pod},
		},
	}
}
