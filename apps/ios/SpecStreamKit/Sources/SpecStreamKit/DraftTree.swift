import Foundation

/// Drafted tokens in breadth-first order; node 0 is the root, the newest token of the text.
public struct DraftTree: Equatable {
    public let tokens: [Int32]
    /// The index of each node's parent, -1 for the root; a parent comes before its children.
    public let parents: [Int]
    /// 0 for the root.
    public let depths: [Int]

    /// The most probable nodes below a root. Of equal ones the one met first comes first.
    ///
    /// - Parameter size: nodes besides the root, or fewer where the guesses run out.
    public init(root: Int32, guesses: StreamGuesses = StreamGuesses(), size: Int = 0) {
        struct Node {
            let path: [Int32], parent: Int, score: Double
        }
        var chosen: [Node] = [], open: [Node] = []
        var newest = Node(path: [], parent: -1, score: 0)
        while chosen.count < size {
            // A node's place among the chosen ones is that of the newest, its children's parent.
            for (token, logProb) in guesses.behind(newest.path) where newest.score + logProb > -.infinity {
                open.append(Node(path: newest.path + [token], parent: chosen.count - 1, score: newest.score + logProb))
            }
            // The first of the largest: `open` is in the order of arrival.
            guard let best = open.indices.reduce(nil as Int?, { most, next in
                most.map { open[next].score > open[$0].score ? next : $0 } ?? next
            }) else { break }
            newest = open.remove(at: best)
            chosen.append(newest)
        }
        let order = chosen.indices.sorted { (chosen[$0].path.count, $0) < (chosen[$1].path.count, $1) }
        var number = [-1: 0]
        for (place, index) in order.enumerated() { number[index] = place + 1 }
        tokens = [root] + order.map { chosen[$0].path.last! }
        parents = [-1] + order.map { number[chosen[$0].parent]! }
        depths = [0] + order.map { chosen[$0].path.count }
    }

    /// Indices from the root to a node.
    public func path(to node: Int) -> [Int] {
        node == 0 ? [0] : path(to: parents[node]) + [node]
    }
}
