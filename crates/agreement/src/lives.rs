//! The number of a process's life: who has lost its state comes back as somebody who has never promised anything, and must not be taken
//! for who it was. Each life takes the next number, by a register of the process's own in each memory: a majority is read, and
//! then a majority holds one more than the highest there. n ≥ fP + 1, m ≥ 2fM + 1; of one process one life at a time: a memory fences
//! the connection of the last.

use crate::process::majority;
use crate::{
    Action, Actions, ChangeRule, Input, MemoryId, Op, Process, ProcessId, ProcessSet, Region, Registers,
    Response, Rights,
};

/// A process that finds out which life this is: its decision.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lives {
    me: ProcessId,
    region: u8,
    memories: u8,
    /// The highest number that was read, and by how many.
    last: u64,
    read: usize,
    /// What is being written, and by how many it was.
    life: Option<u64>,
    written: usize,
}

impl Lives {
    /// A process that begins. Its registers are in this region of each memory.
    pub fn new(me: ProcessId, memories: u8, region: u8) -> Lives {
        Lives { me, region, memories, last: 0, read: 0, life: None, written: 0 }
    }

    /// The regions of each memory: one, with a register for each process.
    pub fn regions(processes: u8) -> Vec<Region> {
        let all = ProcessSet::first(processes);
        vec![Region {
            registers: processes.into(),
            rights: Rights { read: all, write: all },
            rule: ChangeRule::Never,
            kind: Registers::Written,
        }]
    }

    fn ask_all(&self, op: &Op<u64>, out: &mut Actions<Self>) {
        out.extend((0..self.memories).map(|m| Action::Ask { memory: MemoryId(m), op: op.clone() }));
    }

    fn write(&self, life: u64) -> Op<u64> {
        Op::Write { region: self.region, register: self.me.0.into(), cell: life }
    }
}

impl Process for Lives {
    type Cell = u64;
    type Message = ();
    type Value = u64;

    fn handle(&mut self, input: Input<u64, ()>, out: &mut Actions<Self>) {
        match input {
            Input::Start => {
                let op = Op::Read { region: self.region, first: self.me.0.into(), count: 1 };
                self.ask_all(&op, out);
            }
            Input::Response { response: Response::Cells(cells), .. } => {
                self.last = self.last.max(cells.first().copied().unwrap_or(0));
                self.read += 1;
                if self.life.is_none() && self.read >= majority(self.memories.into()) {
                    let life = self.last + 1;
                    self.life = Some(life);
                    self.ask_all(&self.write(life), out);
                }
            }
            Input::Response { response: Response::Ack, .. } => self.written += 1,
            // The connection broke: it is not known whether this was written.
            Input::Response { memory, response: Response::Nak, .. } => {
                if let Some(life) = self.life {
                    out.push(Action::Ask { memory, op: self.write(life) });
                }
            }
            _ => {}
        }
    }

    fn decision(&self) -> Option<&u64> {
        self.life.as_ref().filter(|_| self.written >= majority(self.memories.into()))
    }

    fn attempts(&self) -> u64 {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    /// A life that reaches these memories only.
    fn live(memories: &mut [Memory<u64>], reached: &[usize]) -> Option<u64> {
        let mut process = Lives::new(ProcessId(1), 3, 0);
        let mut asked = Vec::new();
        process.handle(Input::Start, &mut asked);
        while let Some(Action::Ask { memory, op }) = asked.pop() {
            if reached.contains(&usize::from(memory.0)) {
                let response = memories[usize::from(memory.0)].execute(ProcessId(1), &op);
                process.handle(Input::Response { memory, nth: 0, response }, &mut asked);
            }
        }
        process.decision().copied()
    }

    #[test]
    fn no_two_lives_have_one_number_whichever_majority_they_reach() {
        let mut memories = vec![Memory::new(2, &Lives::regions(2)); 3];
        assert_eq!(live(&mut memories, &[2]), None, "one of three is nobody's");
        let reached = [&[0, 1][..], &[1, 2], &[0, 2], &[0, 1, 2], &[2, 0]];
        let lives: Vec<_> =
            reached.iter().map(|reached| live(&mut memories, reached).expect("a majority")).collect();
        assert!(lives.windows(2).all(|two| two[0] < two[1]), "{lives:?}");
    }
}
