"""Collectives in small programs written by hand in the compiler's notation."""

from __future__ import annotations

from tests.helpers import hlo

MESH = {'data': 2, 'fsdp': 2, 'model': 2}

LOOP = """HloModule step

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inner_condition (s: (s32[], f32[8])) -> pred[] {
  %limit.1 = s32[] constant(8)
  %s = (s32[], f32[8]) parameter(0)
  %i.1 = s32[] get-tuple-element(%s), index=0
  ROOT %less.1 = pred[] compare(%i.1, %limit.1), direction=LT
}

%inner_body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s.1 = (s32[], f32[8]{0:T(256)(128)}) parameter(0)
  %i.2 = s32[] get-tuple-element(%s.1), index=0
  %two = s32[] constant(2)
  %next.1 = s32[] add(%i.2, %two)
  %x.1 = f32[8] get-tuple-element(%s.1), index=1
  %permuted-start = (f32[8], f32[8], u32[], u32[]) collective-permute-start(%x.1), \
source_target_pairs={{0,1},{1,0},{2,3},{3,2},{4,5},{5,4},{6,7},{7,6}}, \
metadata={op_name="jit(step)/roll"}
  %permuted-done = f32[8]{0:T(256)(128)} collective-permute-done(%permuted-start)
  ROOT %state.1 = (s32[], f32[8]) tuple(%next.1, %permuted-done)
}

%condition (t: (f32[8], s32[])) -> pred[] {
  %limit.2 = s32[] constant(3)
  %t = (f32[8], s32[]) parameter(0)
  %i.3 = s32[] get-tuple-element(%t), index=1
  ROOT %less.2 = pred[] compare(%i.3, %limit.2), direction=LT
}

%body (t: (f32[8], s32[])) -> (f32[8], s32[]) {
  %t.1 = (f32[8], s32[]) parameter(0)
  %i.4 = s32[] get-tuple-element(%t.1), index=1
  %one = s32[] constant(1)
  %next.2 = s32[] add(%i.4, %one)
  %x.2 = f32[8] get-tuple-element(%t.1), index=0
  %zero = s32[] constant(0)
  %start = (s32[], f32[8]) tuple(%zero, %x.2)
  %inner = (s32[], f32[8]) while(%start), condition=%inner_condition, body=%inner_body
  %x.3 = f32[8] get-tuple-element(%inner), index=1
  %reduced = (f32[8], /*index=1*/bf16[4,2]{1,0:T(8,128)(2,1)}) all-reduce(%x.3, %x.3), \
channel_id=2, replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0'}, to_apply=%add
  %x.4 = f32[8] get-tuple-element(%reduced), index=0
  ROOT %state.2 = (f32[8], s32[]) tuple(%x.4, %next.2)
}

%all-reduce-scatter (input: f32[16]) -> f32[4] {
  %input = f32[16] parameter(0)
  %whole = f32[16] all-reduce(%input), channel_id=5, replica_groups={{0,1,2,3},{4,5,6,7}}, \
to_apply=%add
  ROOT %own = f32[4] dynamic-slice(%whole), dynamic_slice_sizes={4}
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %begin = s32[] constant(0)
  %start.2 = (f32[8], s32[]) tuple(%x, %begin)
  %outer = (f32[8], s32[]) while(%start.2), condition=%condition, body=%body
  %gathered = s32[32]{0} all-gather(%x), channel_id=3, replica_groups=[2,4]<=[2,2,2]T(1,0,2), \
dimensions={0}
  %scattered = f32[4] reduce-scatter(%x), channel_id=4, replica_groups=[4,2]<=[8], to_apply=%add
  %fused = f32[4] fusion(%x), kind=kCustom, calls=%all-reduce-scatter
  ROOT %y = f32[8] get-tuple-element(%outer), index=0
}
"""


def test_each_collective_is_there_once_with_its_axes_and_bytes():
    found = {f'{c.kind} {c.bytes}': c for c in hlo.collectives(LOOP, MESH)}
    facts = {name: (c.axes, c.size, c.count, c.sent) for name, c in found.items()}
    assert facts == {
        'all-reduce 48': (('data',), 2, 3, 48),  # devices 0 and 4; 2 * 1/2 of it is sent
        'collective-permute 32': (('model',), 2, 12, 32),  # in a loop within a loop
        'all-gather 128': (('data', 'model'), 4, 1, 96),  # 0, 1, 4, 5
        'reduce-scatter 32': (('model',), 2, 1, 16),
        'reduce-scatter 64': (('fsdp', 'model'), 4, 1, 48),
    }
