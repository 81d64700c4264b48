package config

import (
	"slices"
	"strings"
)

// ControllerNames are the controllers that server.controllers switches: those of which another program may do the
// work. What the state, its scheduler and its bounds rely on is always kept by the leader.
func ControllerNames() []string {
	return []string{
		"attachdetach", "clusterrole-aggregation", "cronjob", "daemonset", "deployment", "endpoint", "endpointslice", "endpointslicemirroring",
		"ephemeral-volume-controller", "horizontal-pod-autoscaler", "job", "persistent-volume-binder", "pv-protection-controller",
		"pvc-protection-controller", "replicaset", "replication", "resourceclaim-controller", "service-cidrs-controller", "serviceaccount-token-controller", "statefulset", "token-cleaner",
		"ttlafterfinished", "validatingadmissionpolicy-status", "volumeattributesclass-protection-controller",
	}
}

// everyController stands for all that are not named otherwise.
const everyController = "*"

// ControllersOff are the controllers that this server does not run when it leads.
func (s *Server) ControllersOff() (off []string) {
	for _, name := range ControllerNames() {
		on := slices.Contains(s.Controllers, name) || slices.Contains(s.Controllers, everyController) && !slices.Contains(s.Controllers, "-"+name)
		if !on {
			off = append(off, name)
		}
	}
	return off
}

func (s *Server) validateControllers(k checker) {
	const option = "server.controllers"
	named := map[string]bool{}
	for _, v := range s.Controllers {
		name := strings.TrimPrefix(v, "-")
		if v != everyController && !slices.Contains(ControllerNames(), name) {
			k.fail(option, "there is no controller %q; there are %s", name, strings.Join(ControllerNames(), ", "))
		}
		if named[name] {
			k.fail(option, "%q is there twice", name)
		}
		named[name] = true
	}
}
