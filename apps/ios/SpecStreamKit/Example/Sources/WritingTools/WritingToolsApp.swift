import SwiftUI

/// The package (`tools.mlpackage` in Xcode, which compiles it) and the folder `tools.tokenizer` are
/// resources of the app.
@main
struct WritingToolsApp: App {
    var body: some Scene {
        WindowGroup { WritingToolsView() }
    }
}

struct WritingToolsView: View {
    @State private var text = ""
    @State private var result = ""
    @State private var tools: WritingTools?
    @State private var names: [String] = []
    @State private var writing = false

    var body: some View {
        VStack(alignment: .leading) {
            TextEditor(text: $text)
            HStack {
                ForEach(names, id: \.self) { name in
                    Button(name) { Task { await apply(name) } }
                }
            }
            .disabled(writing || text.isEmpty)
            ScrollView { Text(result).textSelection(.enabled) }
        }
        .padding()
        .task { await load() }
    }

    private func load() async {
        guard
            let package = Bundle.main.url(forResource: "tools", withExtension: "mlmodelc"),
            let tokenizer = Bundle.main.url(forResource: "tools", withExtension: "tokenizer")
        else {
            result = "The app holds no tools.mlmodelc and tools.tokenizer."
            return
        }
        do {
            let loaded = try await WritingTools(package: package, tokenizer: tokenizer)
            (tools, names) = (loaded, loaded.names)
        } catch {
            result = "\(error)"
        }
    }

    private func apply(_ name: String) async {
        guard let tools else { return }
        writing = true
        defer { writing = false }
        do {
            for try await text in tools.texts(of: name, for: text) { result = text }
        } catch {
            result = "\(error)"
        }
    }
}
