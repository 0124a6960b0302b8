package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/cmd/kubectl-holdfast/doctor"
)

// versions are those of this program and of the controller; Unread says why the latter is not known.
type versions struct {
	Client string `json:"client"`
	Server string `json:"server,omitempty"`
	Unread string `json:"unread,omitempty"`
}

func versionCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	local := false
	cmd := &cobra.Command{
		Use:   "version",
		Short: "print the versions of this program and of the cluster's holdfast-controller",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("version takes no names (%s)", strings.Join(args, " "))
			}
			return nil
		},
	}
	out := outputFlag(cmd, "text")
	cmd.Flags().BoolVar(&local, "client", local, "print only the version of this program")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		v := versions{Client: version}
		if !local {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			v.Server, v.Unread = serverSide(ctx, flags)
		}
		return out.print(streams.Out, v, func(string) string {
			text := "client: " + v.Client + "\n"
			switch {
			case v.Server != "":
				text += "server: " + v.Server + "\n"
			case v.Unread != "":
				text += "server: not known: " + v.Unread + "\n"
			}
			return text
		})
	}
	return cmd
}

// serverSide is the version of the cluster's controller, by the tag of its image, or why it is not known.
func serverSide(ctx context.Context, flags *genericclioptions.ConfigFlags) (found, unread string) {
	c, _, _, err := connect(flags, &warned{})
	if err != nil {
		return "", err.Error()
	}
	d := &appsv1.Deployment{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: ownNamespace(), Name: ownName("holdfast-controller")}, d); err != nil {
		return "", err.Error()
	}
	for _, container := range d.Spec.Template.Spec.Containers {
		if tag := doctor.Tag(container.Image); tag != "" {
			return tag, ""
		}
	}
	return "", "the controller's image has no tag"
}
