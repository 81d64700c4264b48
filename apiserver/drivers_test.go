package apiserver

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/resource"

	"github.com/berth-dev/berth/fsm"
)

// driverObjects are one of each kind that drivers and controllers of others' act on. change is a merge patch that
// is to be taken, columns what a list shows.
var driverObjects = []struct{ kind, name, resource, manifest, change, status, columns string }{
	{
		"Ingress", "web", "ingress.networking.k8s.io", "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web}\n" +
			"spec: {rules: [{host: web.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}",
		`{"spec":{"tls":[{"hosts":["web.example.com"]}]}}`, `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.7"}]}}}`, "web.example.com 192.0.2.7",
	},
	{
		"IngressClass", "outside", "ingressclass.networking.k8s.io", "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: outside}\nspec: {controller: example.com/outside}",
		`{"metadata":{"labels":{"a":"b"}}}`, "", "example.com/outside",
	},
	{
		"CSIDriver", "disks.example.com", "csidriver.storage.k8s.io", "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: disks.example.com}\nspec: {attachRequired: false}",
		`{"spec":{"requiresRepublish":true}}`, "", "disks.example.com Persistent",
	},
	{
		"CSINode", "n1", "csinode.storage.k8s.io", "apiVersion: storage.k8s.io/v1\nkind: CSINode\nmetadata: {name: n1}\nspec: {drivers: [{name: disks.example.com, nodeID: one, topologyKeys: [example.com/rack], allocatable: {count: 3}}]}",
		`{"metadata":{"labels":{"a":"b"}}}`, "", "n1 1",
	},
	{
		"CSIStorageCapacity", "left", "csistoragecapacity.storage.k8s.io", "apiVersion: storage.k8s.io/v1\nkind: CSIStorageCapacity\nmetadata: {name: left}\nstorageClassName: disks\ncapacity: 7Gi",
		`{"capacity":"6Gi"}`, "", "left",
	},
	{
		"VolumeAttachment", "one", "volumeattachment.storage.k8s.io", "apiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {name: one}\nspec: {attacher: disks.example.com, nodeName: n1, source: {persistentVolumeName: data}}",
		`{"metadata":{"labels":{"a":"b"}}}`, `{"status":{"attached":true}}`, "disks.example.com data n1 true",
	},
	{
		"VolumeAttributesClass", "gold", "volumeattributesclass.storage.k8s.io", "apiVersion: storage.k8s.io/v1\nkind: VolumeAttributesClass\nmetadata: {name: gold}\ndriverName: disks.example.com\nparameters: {iops: '3000'}",
		`{"metadata":{"labels":{"a":"b"}}}`, "", "disks.example.com",
	},
	{
		"DeviceClass", "gpus", "deviceclass.resource.k8s.io", "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: gpus}\nspec: {selectors: [{cel: {expression: 'device.driver == \"gpus.example.com\"'}}]}",
		`{"spec":{"selectors":[]}}`, "", "gpus",
	},
	{
		"ResourceClaim", "gpu", "resourceclaim.resource.k8s.io", "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: gpu}\nspec: {devices: {requests: [{name: one, exactly: {deviceClassName: gpus, allocationMode: ExactCount, count: 1}}]}}",
		`{"metadata":{"labels":{"a":"b"}}}`, `{"status":{"allocation":{}}}`, "gpu allocated",
	},
	{
		"ResourceClaimTemplate", "gpus", "resourceclaimtemplate.resource.k8s.io", "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: gpus}\nspec: {spec: {devices: {requests: [{name: one, exactly: {deviceClassName: gpus, allocationMode: ExactCount, count: 1}}]}}}",
		`{"metadata":{"labels":{"a":"b"}}}`, "", "gpus",
	},
	{
		"ResourceSlice", "n1-gpus", "resourceslice.resource.k8s.io", "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: n1-gpus}\nspec: {driver: gpus.example.com, nodeName: n1, pool: {name: n1, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-0}]}",
		`{"spec":{"devices":[{"name":"gpu-0"},{"name":"gpu-1"}]}}`, "", "n1 gpus.example.com n1",
	},
}

func TestDriverKindsByKubectl(t *testing.T) {
	s := share(t)
	k := newKubectl(t, s, s.namespace(t))
	for _, o := range driverObjects {
		t.Run(o.kind, func(t *testing.T) {
			k := &kubectl{t, k.kubeconfig, k.namespace}
			name := o.resource + "/" + o.name
			k.want(o.manifest, []string{"create", "--dry-run=server"}, name+" created (server dry run)")
			k.want(o.manifest, []string{"apply"}, name+" created")
			k.want(o.manifest, []string{"apply"}, "unchanged")
			k.want(o.manifest, []string{"apply", "--server-side", "--force-conflicts"}, "serverside-applied")
			k.want("", []string{"patch", o.resource, o.name, "--type=merge", "-p", o.change}, "patched")
			if o.status != "" {
				k.want("", []string{"patch", o.resource, o.name, "--subresource=status", "--type=merge", "-p", o.status}, "patched")
			}
			k.want("", []string{"get", o.resource, "--field-selector=metadata.name=" + o.name}, strings.Fields(o.columns)...)
			k.want("", []string{"describe", o.resource, o.name}, o.name)
			k.want("", []string{"explain", strings.ToLower(o.kind)}, "KIND:", o.kind)
			// Nobody is here who would let go of what is protected while it is used.
			k.want("", []string{"patch", o.resource, o.name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`}, "patched")
			k.want("", []string{"delete", o.resource, o.name}, "deleted")
			k.refused("", []string{"get", o.resource, o.name}, "not found")
		})
	}
}

// What Kubernetes does beyond keeping them holds here, too.
func TestDriverKindsAreAsInKubernetes(t *testing.T) {
	s := start(t, newDouble(t), nil)
	k := newKubectl(t, s, "kube-public")
	manifest := func(kind string) string {
		for _, o := range driverObjects {
			if o.kind == kind {
				return o.manifest
			}
		}
		t.Fatalf("there is no %s", kind)
		return ""
	}
	// The default class is that of ingresses that name none.
	k.want(strings.Replace(manifest("IngressClass"), "{name: outside}", "{name: outside, annotations: {ingressclass.kubernetes.io/is-default-class: 'true'}}", 1), []string{"create"}, "created")
	k.want(manifest("Ingress"), []string{"create"}, "created")
	k.want("", []string{"get", "ing", "web"}, "outside")
	// Drivers may be found by their node, as those on it do.
	k.want(manifest("ResourceSlice"), []string{"create"}, "created")
	k.want("", []string{"get", "resourceslices", "--field-selector=spec.nodeName=n1"}, "n1-gpus")
	k.refused("", []string{"get", "resourceslices", "n1-gpus", "--field-selector=spec.nodeName=n2"}, "")
	// What is asked for is settled when it is asked.
	k.want(manifest("ResourceClaim"), []string{"create"}, "created")
	k.refused("", []string{"patch", "resourceclaim", "gpu", "--type=merge", "-p", `{"spec":{"devices":{"requests":[]}}}`}, "field is immutable")
	k.refused(strings.Replace(manifest("ResourceClaim"), "deviceClassName: gpus", "deviceClassName: gpus, adminAccess: true", 1), []string{"create"}, "")
	k.refused(strings.Replace(manifest("DeviceClass"), "device.driver ==", "device.driver +", 1), []string{"create"}, "spec.selectors[0].cel.expression")
	// Of what nobody acts upon its author hears.
	k.want(strings.NewReplacer("{name: gpus}", "{name: extended}", "spec: {", "spec: {extendedResourceName: example.com/gpu, ").Replace(manifest("DeviceClass")),
		[]string{"create"}, "Warning: spec.extendedResourceName: nobody here makes claims")
	// Each is counted by quotas.
	k.want("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: few}\nspec: {hard: {count/ingresses.networking.k8s.io: '1', count/resourceclaims.resource.k8s.io: '1'}}", []string{"create"}, "created")
	k.refused(strings.Replace(manifest("Ingress"), "{name: web}", "{name: other}", 1), []string{"create"}, "exceeded quota: few, requested: count/ingresses.networking.k8s.io=1, used: count/ingresses.networking.k8s.io=1")
	// A node that claims a great many drivers would be looked at for long.
	var drivers []string
	for i := range fsm.MaxNodeDrivers + 1 {
		drivers = append(drivers, fmt.Sprintf("{name: d%d.example.com, nodeID: one}", i))
	}
	k.refused("apiVersion: storage.k8s.io/v1\nkind: CSINode\nmetadata: {name: n2}\nspec: {drivers: ["+strings.Join(drivers, ", ")+"]}", []string{"create"}, "spec.drivers: Too many")
}

// TestExpressionsOfDevices: what compiling all expressions of an object costs is bounded.
func TestExpressionsOfDevices(t *testing.T) {
	selectors := make([]resource.DeviceSelector, 8)
	for i := range selectors {
		selectors[i].CEL = &resource.CELDeviceSelector{Expression: strings.Repeat("x", 8<<10)}
	}
	claim := resource.ResourceClaimSpec{Devices: resource.DeviceClaim{Requests: []resource.DeviceRequest{
		{Exactly: &resource.ExactDeviceRequest{Selectors: selectors[:4]}},
		{FirstAvailable: []resource.DeviceSubRequest{{Selectors: selectors[4:6]}, {Selectors: selectors[6:]}}},
	}}}
	for _, o := range []runtime.Object{
		&resource.ResourceClaim{Spec: claim}, &resource.ResourceClaimTemplate{Spec: resource.ResourceClaimTemplateSpec{Spec: claim}},
		&resource.DeviceClass{Spec: resource.DeviceClassSpec{Selectors: selectors}},
	} {
		selectors[7].CEL.Expression = strings.Repeat("x", 8<<10)
		if err := checkLimits(o); err != nil {
			t.Errorf("%T: %v", o, err)
		}
		selectors[7].CEL.Expression += "x"
		wantStatus(t, checkLimits(o), 422, "have 65537 bytes together, and may have 65536")
	}
}
