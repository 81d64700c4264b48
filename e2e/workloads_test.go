package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// Every kind of the examples does what it says, by the commands that users have.
func TestWorkloadsOfTheExamples(t *testing.T) {
	c := sharedCluster(t)
	s := newSets(t, c, "kinds")
	manifest := func(name string) string { return "../examples/manifests/" + name + ".yaml" }

	has(t, "apply", s.kubectl("apply", "-f", manifest("deployment")), "deployment.apps/web created")
	s.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
	s.kubectl("set", "env", "deployment/web", "GREETING=hello")
	s.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
	has(t, "history", s.kubectl("rollout", "history", "deployment/web"), "1 ", "2 ")
	has(t, "env", s.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.containers[*].env[*].value}"), "hello hello hello")
	s.kubectl("rollout", "undo", "deployment/web")
	s.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
	s.kubectl("rollout", "pause", "deployment/web")
	s.kubectl("set", "env", "deployment/web", "GREETING=later")
	s.kubectl("scale", "deployment/web", "--replicas=4")
	has(t, "wait", s.kubectl("wait", "--for=jsonpath={.status.readyReplicas}=4", "deployment/web", "--timeout=90s"), "met")
	has(t, "paused", s.kubectl("get", "deployment", "web", "-o", "jsonpath={.status.updatedReplicas}"), "")
	s.kubectl("rollout", "resume", "deployment/web")
	s.kubectl("rollout", "status", "deployment/web", "--timeout=90s")

	s.kubectl("apply", "-f", manifest("service"), "-f", manifest("autoscaler"))
	s.eventually(t, "the endpoints of web", func(context.Context) error {
		if out := s.kubectl("get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "jsonpath={.items[*].endpoints[*].targetRef.name}"); len(strings.Fields(out)) != 4 {
			return fmt.Errorf("they are %q", out)
		}
		return nil
	})
	c.berth(t, "apply", "-n", "default", "-f", manifest("persistentvolume"))
	has(t, "claim", c.berth(t, "wait", "-n", "default", "--for=jsonpath={.status.phase}=Bound", "pvc/shared", "--timeout=90s"), "met")
	c.berth(t, "delete", "-n", "default", "pvc/shared", "pv/shared")
	has(t, "autoscaler", s.kubectl("get", "hpa", "web"), "Deployment/web", "2", "6")
	s.kubectl("delete", "hpa/web", "service/web")
	for _, name := range []string{"statefulset", "daemonset", "job", "cronjob", "replicationcontroller"} {
		s.kubectl("apply", "-f", manifest(name))
	}
	s.kubectl("rollout", "status", "statefulset/db", "--timeout=90s")
	has(t, "ordinals", s.kubectl("get", "pods", "-l", "app=db", "-o", "name"), "pod/db-0", "pod/db-1", "pod/db-2")
	s.kubectl("rollout", "status", "daemonset/agent", "--timeout=90s")
	has(t, "one a node", s.kubectl("get", "pods", "-l", "app=agent", "-o", "jsonpath={.items[*].spec.nodeName}"), "worker-1", "worker-2", "worker-3")
	has(t, "wait", s.kubectl("wait", "--for=jsonpath={.status.readyReplicas}=2", "rc/elder", "--timeout=90s"), "met")
	s.kubectl("wait", "--for=condition=Complete", "job/pieces", "--timeout=90s")
	has(t, "job", s.kubectl("get", "job", "pieces"), "6/6")
	s.eventually(t, "the endpoints of db", func(context.Context) error {
		if out := s.kubectl("get", "endpointslices", "-l", "kubernetes.io/service-name=db", "-o", "jsonpath={.items[*].endpoints[*].hostname}"); len(strings.Fields(out)) != 3 {
			return fmt.Errorf("they are %q", out)
		}
		return nil
	})
	for _, cascade := range []string{"deployment/web --cascade=foreground", "statefulset/db", "daemonset/agent", "job/pieces", "cronjob/report", "rc/elder", "service/db"} {
		s.kubectl(append([]string{"delete", "--timeout=90s"}, strings.Fields(cascade)...)...)
	}
	s.eventually(t, "all pods to go with their owners", func(context.Context) error {
		if out := s.kubectl("get", "pods,rs,controllerrevisions,endpoints,endpointslices", "-o", "name"); strings.TrimSpace(out) != "" {
			return fmt.Errorf("there are %s", out)
		}
		return nil
	})
	c.verify(t, 3) // nobody has changed what is the state's
}
