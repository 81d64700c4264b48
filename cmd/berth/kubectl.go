package main

import (
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/cmd/annotate"
	"k8s.io/kubectl/pkg/cmd/apiresources"
	"k8s.io/kubectl/pkg/cmd/apply"
	"k8s.io/kubectl/pkg/cmd/attach"
	"k8s.io/kubectl/pkg/cmd/auth"
	"k8s.io/kubectl/pkg/cmd/autoscale"
	"k8s.io/kubectl/pkg/cmd/certificates"
	"k8s.io/kubectl/pkg/cmd/clusterinfo"
	"k8s.io/kubectl/pkg/cmd/cp"
	"k8s.io/kubectl/pkg/cmd/create"
	"k8s.io/kubectl/pkg/cmd/debug"
	"k8s.io/kubectl/pkg/cmd/delete"
	"k8s.io/kubectl/pkg/cmd/describe"
	"k8s.io/kubectl/pkg/cmd/diff"
	"k8s.io/kubectl/pkg/cmd/drain"
	"k8s.io/kubectl/pkg/cmd/edit"
	"k8s.io/kubectl/pkg/cmd/events"
	cmdexec "k8s.io/kubectl/pkg/cmd/exec"
	"k8s.io/kubectl/pkg/cmd/explain"
	"k8s.io/kubectl/pkg/cmd/expose"
	"k8s.io/kubectl/pkg/cmd/get"
	"k8s.io/kubectl/pkg/cmd/kustomize"
	"k8s.io/kubectl/pkg/cmd/label"
	"k8s.io/kubectl/pkg/cmd/logs"
	"k8s.io/kubectl/pkg/cmd/patch"
	"k8s.io/kubectl/pkg/cmd/portforward"
	"k8s.io/kubectl/pkg/cmd/proxy"
	"k8s.io/kubectl/pkg/cmd/replace"
	"k8s.io/kubectl/pkg/cmd/rollout"
	"k8s.io/kubectl/pkg/cmd/run"
	"k8s.io/kubectl/pkg/cmd/scale"
	"k8s.io/kubectl/pkg/cmd/set"
	"k8s.io/kubectl/pkg/cmd/taint"
	"k8s.io/kubectl/pkg/cmd/top"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/cmd/wait"
	utilcomp "k8s.io/kubectl/pkg/util/completion"
	"k8s.io/kubectl/pkg/util/templates"
)

// kubectlCommands are kubectl's own, over our connection. Left out is what has
// nothing to act on here: kubeconfig files.
func (a *app) kubectlCommands(f cmdutil.Factory) templates.CommandGroups {
	s := genericiooptions.IOStreams{In: a.in, Out: a.out, ErrOut: a.errOut}
	words := s // of logs that are followed: client-go's waiting says the same again and again
	words.ErrOut = &unrepeated{out: s.ErrOut}
	described := s
	described.Out = leaseless{s.Out}
	topCmd := top.NewCmdTop(f, s)
	topCmd.Long = templates.LongDesc(`
		Show what nodes or pods use of processors and memory, as the workers measured it last. Without metrics-server: the servers
		answer it themselves.`)
	getCmd := get.NewCmdGet("berth", f, s)
	getCmd.ValidArgsFunction = utilcomp.ResourceTypeAndNameCompletionFunc(f)
	groups := templates.CommandGroups{
		{Message: "See and Change Objects:", Commands: []*cobra.Command{
			getCmd, describe.NewCmdDescribe("berth", f, described), explain.NewCmdExplain("berth", f, s), events.NewCmdEvents(f, s),
			apply.NewCmdApply("berth", f, s), create.NewCmdCreate(f, s), run.NewCmdRun(f, s), edit.NewCmdEdit(f, s),
			patch.NewCmdPatch(f, s), replace.NewCmdReplace(f, s), delete.NewCmdDelete(f, s), diff.NewCmdDiff(f, s),
			label.NewCmdLabel(f, s), annotate.NewCmdAnnotate("berth", f, s), set.NewCmdSet(f, s),
			scale.NewCmdScale(f, s), autoscale.NewCmdAutoscale(f, s), expose.NewCmdExposeService(f, s), rollout.NewCmdRollout("berth", f, s), wait.NewCmdWait(f, s),
		}},
		{Message: "Look Into Pods:", Commands: []*cobra.Command{
			logs.NewCmdLogs(f, words), cmdexec.NewCmdExec(f, s), attach.NewCmdAttach(f, s),
			portforward.NewCmdPortForward(f, s), cp.NewCmdCp(f, s), debug.NewCmdDebug(f, s),
		}},
		{Message: "Look After Nodes:", Commands: []*cobra.Command{
			topCmd, drain.NewCmdCordon(f, s), drain.NewCmdUncordon(f, s), drain.NewCmdDrain(f, s), taint.NewCmdTaint(f, s),
		}},
		{Message: "Know the API:", Commands: []*cobra.Command{
			clusterinfo.NewCmdClusterInfo(f, s), apiresources.NewCmdAPIResources(f, s), apiresources.NewCmdAPIVersions(f, s),
			auth.NewCmdAuth(f, s), certificates.NewCmdCertificate(f, s), proxy.NewCmdProxy(f, s), kustomize.NewCmdKustomize(s),
		}},
	}
	for _, g := range groups {
		for _, c := range g.Commands {
			rename(c)
		}
	}
	return groups
}

// rename makes the help speak of this binary.
func rename(c *cobra.Command) {
	for _, text := range []*string{&c.Use, &c.Short, &c.Long, &c.Example} {
		*text = strings.ReplaceAll(*text, "kubectl ", "berth ")
	}
	for _, sub := range c.Commands() {
		rename(sub)
	}
}
